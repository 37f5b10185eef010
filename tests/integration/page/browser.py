"""A headless Chromium, and what it must never do on a page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)
from playwright.sync_api import Error as PlaywrightError

from tests.integration.page.served_page import PageServer

WATCH = """
window.canary = [];
window.violations = [];
for (const name of ["alert", "confirm", "prompt", "print", "open"]) {
  window[name] = () => window.canary.push(name);
}
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`);
});
"""
"""A script that got into the page calls `alert`; the page itself calls none of these."""
DESKTOP: Any = {"width": 1280, "height": 800}
PHONE: Any = {"width": 360, "height": 740}
FOREIGN = """[...document.querySelectorAll("body *")].filter((element) => {
  const names = "SCRIPT IFRAME IMG SVG MATH BASE META LINK STYLE OBJECT EMBED".split(" ");
  if (names.includes(element.tagName.toUpperCase())) return true;
  if ([...element.attributes].some((one) => /^on|^src|^style$|^action$/.test(one.name)
      && element.closest(".virtual, .gantt") === null)) return true;
  if (!element.href || new URL(element.href).origin === location.origin) return false;
  const {protocol, host} = new URL(element.href);
  const isSafe = /^https?:$/.test(protocol) && element.rel === "noopener noreferrer"
    && element.target === "_blank" && element.closest(".markdown")
    && element.textContent.includes(host);
  return !isSafe;
}).map((element) => element.outerHTML)"""
"""Elements that the page itself never makes; a link of a model's document says where it leads."""
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    if (!own || !element.checkVisibility() || element.closest(":disabled, .sr, dialog")) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${element.className} ${element.textContent.slice(0, 30)} ${ratio}`);
  }
  return poor;
}"""

NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""The browser gives its requests up when another test starts a container, which brings an interface
with it. The page loads itself again then (`start.js`), and has to show what the test waits for."""


def chromium() -> str | None:
    """The browser: CHROMIUM, or the one on the PATH."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


@contextmanager
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


class Watched:
    """A page that remembers what it should not have done.

    Args:
        context: Its context.
        url: The address of the service: all requests go there.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.faults: list[str] = []
        self._context = context
        self._began = time.monotonic()
        self._history: list[str] = []
        self._unanswered: dict[Request, float] = {}
        context.add_init_script(WATCH)
        self.page: Page = context.new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("pageerror", self._raised)
        self.page.on("request", self._requested)
        self.page.on("response", self._responded)
        self.page.on("requestfailed", self._failed)
        self.page.on("console", lambda one: self._said(one.type, one.text))

    def open(self, address: str, wait_for: str = "h1") -> Page:
        """Open an address of the page and wait until it shows something."""
        self.page.goto(f"{self.url}/{address}")
        self.page.wait_for_selector(wait_for, state="attached")
        return self.page

    def check(self) -> None:
        """Check that nothing has happened that should not."""
        assert self.page.evaluate("window.canary") == []
        assert self.page.evaluate("window.violations") == []
        assert not self.faults, self.faults

    def describe(self) -> str:
        """Return what the page shows, and what it has asked for and got."""
        try:
            shown = self.page.locator("body").inner_text(timeout=5_000)
        except PlaywrightError as error:
            shown = str(error)
        unanswered = [f"{at:8.2f} {one.url}" for one, at in self._unanswered.items()]
        return "\n".join([
            f"{self._now():8.2f} {self.page.url}", shown,
            "-- requests and console", *self._history,
            "-- without an answer", *unanswered,
        ])  # fmt: skip

    def close(self) -> None:
        """Close the page, its streams and its cookies."""
        self._context.close()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _note(self, text: str) -> None:
        self._history.append(f"{self._now():8.2f} {text}")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:")):
            self.faults.append(f"request: {request.url}")
        self._unanswered[request] = self._now()

    def _responded(self, response: Response) -> None:
        began = self._unanswered.pop(response.request, 0)
        self._note(f"{response.status} {response.url} asked for at {began:.2f}")

    def _failed(self, request: Request) -> None:
        self._unanswered.pop(request, None)
        self._note(f"{request.failure} {request.url}")

    def _raised(self, error: PlaywrightError) -> None:
        self._note(f"error: {error.stack or error}")
        self.faults.append(f"error: {error}")

    def _said(self, kind: str, text: str) -> None:
        self._note(f"{kind}: {text}")
        if kind in ("error", "warning") and NETWORK_CHANGED not in text:
            self.faults.append(f"console: {text}")


@dataclass
class Site:
    """A server, and a browser that is logged in."""

    server: PageServer
    browser: Browser
    session: Any
    watched: list[Watched] = field(default_factory=list, init=False)
    """The pages of the test that runs."""

    def visit(self, **options: Any) -> Watched:
        """Return a new page in a context of its own, which ends with the test."""
        options = {"viewport": DESKTOP, "storage_state": self.session, **options}
        self.watched.append(Watched(self.browser.new_context(**options), self.server.url))
        return self.watched[-1]

    def leave(self) -> None:
        """Close the pages of the test that has ended: their streams and clocks do not go on."""
        while self.watched:
            self.watched.pop().close()


@contextmanager
def open_site(server: PageServer) -> Iterator[Site]:
    """Log a browser in with the link that the server has printed."""
    with browser() as opened:
        context = opened.new_context()
        context.new_page().goto(server.login_link())
        yield Site(server, opened, context.storage_state())


def find_problems(page: Page) -> list[tuple[str, list[str]]]:
    """Return what a checker of accessibility (WCAG 2.1 AA) finds on a page."""
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = Axe().run(page, options={"runOnly": rules})
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found.response["violations"]
    ]
