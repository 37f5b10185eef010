"""What a page did is part of the report of a test that fails; pages end with their test."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.integration.page.browser import Site


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    site = getattr(item, "funcargs", {}).get("site")
    if call.when == "call" and report.failed and isinstance(site, Site):
        report.sections += [("page", watched.describe()) for watched in site.watched]
        report.sections.append(("server", site.server.tail()))
    return report


@pytest.fixture(autouse=True)
def leave_pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what a test has opened."""
    yield
    site = request.node.funcargs.get("site")
    if isinstance(site, Site):
        site.leave()
