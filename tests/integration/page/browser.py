"""A headless Chromium, and what it must never do on a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

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


def chromium() -> str | None:
    """The browser: CHROMIUM, or the one on the PATH."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium")


@contextmanager
def browser() -> Iterator[Browser]:
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
        context.add_init_script(WATCH)
        self.page: Page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._check)
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
        assert self.faults == []

    def _check(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:")):
            self.faults.append(f"request: {request.url}")

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"console: {text}")
