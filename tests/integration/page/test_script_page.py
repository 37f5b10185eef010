"""A run of a script on the page, in a headless Chromium: its phases, its log and its value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from fanout.orchestrator.jobs.store.journal import EventType
from tests.conftest import missing
from tests.integration.page.browser import (
    CONTRAST,
    FOREIGN,
    PHONE,
    Site,
    chromium,
    find_problems,
    open_site,
)
from tests.integration.page.served_page import Hands, PageServer, make_embedded
from tests.integration.scripts import conversation, says
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

SOURCE = b'"""Review every changed file."""\nawait agent("review")\n'
HOSTILE = "<img src=x onerror=alert(1)> Verify"


@pytest.fixture(scope="module")
def site(install_for_module: Installer) -> Iterator[Site]:
    if chromium() is None:
        missing("There is no Chromium: apt-get install chromium.")
    place = install_for_module(conversation("", says("done")))
    make_embedded(place)
    with PageServer(place) as server, open_site(server) as opened:
        yield opened


async def script_run(hands: Hands) -> Any:
    """A run of a script in its second phase: of four calls one has failed, and two are open."""
    blob = await hands.blobs.put(SOURCE)
    run_id = await hands.submit("Review every changed file.", script=blob)
    [claim] = await hands.claim(run_id)
    await hands.note(run_id, EventType.SCRIPT_STARTED, interpreter="1.4.0")
    await begin(hands, run_id, "Review", "prices.py", "stock.py")
    await hands.note(run_id, EventType.SCRIPT_LOG, lines=["2 files to review"])
    await end(hands, run_id, "Review", "prices.py", ok=True)
    await end(hands, run_id, "Review", "stock.py", ok=False)
    await begin(hands, run_id, HOSTILE, "prices.py:11", "prices.py:6")
    for label in ("prices.py", "stock.py", "prices.py:11"):
        await hands.start(claim, description=f"review {label}", agent="reviewer")
    return claim


async def begin(hands: Hands, run_id: str, phase: str, *labels: str) -> None:
    calls = [{"key": f"{phase}{one}", "function": "agent", "label": one} for one in labels]
    await hands.note(run_id, EventType.SCRIPT_PHASE, name=phase)
    await hands.note(run_id, EventType.SCRIPT_CALL, calls=calls)


async def end(hands: Hands, run_id: str, phase: str, label: str, *, ok: bool) -> None:
    await hands.note(run_id, EventType.SCRIPT_RESULT, key=f"{phase}{label}", ok=ok, label=label)


def rows(page: Any) -> list[list[str]]:
    listed = page.locator(".script-phases tbody tr").all()
    return [one.locator("th, td").all_inner_texts() for one in listed]


def test_a_run_of_a_script_shows_its_phases_what_it_waits_for_and_its_value(site: Site):
    claim = site.server.call(script_run(site.server.hands))
    run_id = claim.spec.id
    visited = site.visit()
    page = visited.open(f"?run={run_id}", ".script-phases")

    assert rows(page) == [["Review", "2", "1", "1", "-"], [HOSTILE, "2", "-", "-", "2"]]
    expect(page.locator(".script-waits")).to_have_text("Waits for prices.py:11, prices.py:6")
    expect(page.locator(".script-log")).to_have_text("2 files to review")
    assert find_problems(page) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(FOREIGN) == []
    shoot(page, "script-run")

    hands = site.server.hands
    for label in ("prices.py:11", "prices.py:6"):
        site.server.call(end(hands, run_id, HOSTILE, label, ok=True))
    counts = {"asked": 4, "answered": 3, "failed": 1, "cancelled": 0, "never_run": 0}
    site.server.call(hands.note(run_id, EventType.SCRIPT_ENDED, **counts, reasons=[]))
    site.server.call(hands.finish(claim, output={"confirmed": 2}))

    expect(page.locator(".script-end")).to_have_text("4 calls asked for, 3 answered, 1 failed.")
    expect(page.locator(".result pre")).to_contain_text('"confirmed": 2')
    shoot(page, "script-ended")
    visited.check()


def test_a_script_is_readable_on_a_phone_and_in_the_view_of_its_job(site: Site):
    claim = site.server.call(script_run(site.server.hands))
    visited = site.visit(viewport=PHONE, color_scheme="dark")
    page = visited.open(f"?run={claim.spec.id}", ".script-phases")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    shoot(page, "script-phone")

    page = visited.open(f"?job={claim.spec.id}", ".script-phases")
    assert rows(page)[0] == ["Review", "2", "1", "1", "-"]
    visited.check()


def shoot(page: Any, name: str) -> None:
    """Leave a picture for a person, if one has asked for it (PICTURES=FOLDER)."""
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
