"""Draws the pictures of the page that docs/page.md shows.

    python -m docs.generate.page_pictures

A server of its own shows runs that are made for it, in a headless Chromium; it needs `redis-server`
and Chromium, and takes half a minute. Run it again when a view looks different.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page

from tests.integration.page import showcase
from tests.integration.page.browser import Site, open_site
from tests.integration.page.served_page import PageServer, make_embedded
from tests.integration.scripts import conversation, says, write_script
from tests.services import Installation, installation

FOLDER = Path(__file__).parents[1] / "images"
MAX_BYTES = 120_000
"""Of one picture: the documentation has a dozen, and a clone of the repository has each version."""
SETTLE_MS = 500
"""Until what follows the first rows is there, too: an answer of the service takes milliseconds."""
COLOURS = 255
"""Of a picture: the page has few, and so a fourth of the bytes is enough."""
DESKTOP: Any = {"width": 1200, "height": 760}
PHONE: Any = {"width": 390, "height": 780}


@dataclass(frozen=True)
class Picture:
    """One view as it is drawn."""

    name: str
    address: str
    """With `{live}` and `{ended}` for the ids of a run that works and of one that has ended, and
    `{job}` for that of a job with a long conversation."""
    wait_for: str
    """What is there when the view has shown what it is for."""
    is_phone: bool = False
    is_dark: bool = False
    press: str | None = None
    """What is pressed before."""


PICTURES = (
    Picture("page-runs", "", ".job-row .title", press=".job-row.opens .toggle"),
    Picture("page-runs-phone", "", ".job-row .title", is_phone=True, is_dark=True),
    Picture("page-run", "?run={ended}", ".track .run-bar"),
    Picture("page-run-phone", "?run={ended}", ".track .run-bar", is_phone=True, is_dark=True),
    Picture("page-job", "?job={job}", ".item"),
    Picture("page-job-phone", "?job={job}", ".item", is_phone=True),
    Picture("page-changes", "?job={ended}&tab=changes", ".diff-row", is_dark=True),
    Picture("page-approvals", "?view=approvals", ".card"),
    Picture("page-new-job", "?view=new", ".about-agent:not(:empty)", is_dark=True),
)


def draw(site: Site, ids: dict[str, str], to: Path) -> None:
    """Draw all pictures.

    Args:
        site: The server, and a browser that is logged in.
        ids: The ids of the runs, by the names that addresses use.
        to: The folder of the files.
    """
    for picture in PICTURES:
        context = site.browser.new_context(
            storage_state=site.session,
            viewport=PHONE if picture.is_phone else DESKTOP,
            color_scheme="dark" if picture.is_dark else "light",
            reduced_motion="reduce",
            is_mobile=picture.is_phone,
            timezone_id="UTC",
        )
        page = context.new_page()
        page.goto(f"{site.server.url}/{picture.address.format(**ids)}")
        page.wait_for_selector(picture.wait_for)
        if picture.press:
            page.locator(picture.press).first.click()
            page.mouse.move(0, 0)
        page.wait_for_timeout(SETTLE_MS)
        (to / f"{picture.name}.png").write_bytes(_compressed(page))
        context.close()


def _compressed(page: Page) -> bytes:
    with Image.open(io.BytesIO(page.screenshot())) as drawn:
        small = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    content = io.BytesIO()
    small.save(content, "png", optimize=True)
    return content.getvalue()


def is_blank(picture: Path) -> bool:
    """Return whether a picture shows nothing: all of it, but a line, has one colour."""
    with Image.open(picture) as drawn:
        counts = [count for count, _ in drawn.convert("RGB").getcolors(2**24) or []]
    return max(counts) > 0.995 * sum(counts) or len(counts) < 8  # noqa: PLR2004 - text has shades


SCRIPT = conversation("", says("done"))
"""A model that needs no key."""


def main() -> None:
    """Draw the pictures of the documentation."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate.page_pictures")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    to = parser.parse_args().folder
    with (
        tempfile.TemporaryDirectory() as folder,
        installation(Path(folder), script=write_script(Path(folder), SCRIPT)) as place,
    ):
        make_embedded(place)
        _draw_all(place, to)


def _draw_all(place: Installation, to: Path) -> None:
    with PageServer(place) as server, open_site(server) as site:
        live, ended = server.call(showcase.a_week(server.hands, time.time()))
        job = server.call(showcase.conversation_of_a_release(server.hands))
        draw(site, {"live": live, "ended": ended, "job": job}, to)


if __name__ == "__main__":
    main()
