"""Jobs that wait for a model, and a budget, on the page, in a headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from fanout.orchestrator.jobs.store.ledger import ModelWait
from fanout.orchestrator.jobs.store.model_states import ClosedModel, ModelState
from tests.conftest import missing
from tests.integration.page.browser import PHONE, Site, chromium, find_problems, open_site
from tests.integration.page.served_page import Hands, PageServer, make_embedded
from tests.integration.scripts import conversation, says
from tests.services import Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

WHY = "model gemini-2.5-pro, which has no quota left (402); it is tried again at"
HOUR = 3600.0
UNTIL = r"until (\d\d? \w{3} )?\d\d:\d\d"
"""The time at which a wait ends, with the day if it is another one."""


@pytest.fixture(scope="module")
def site(install_for_module: Installer) -> Iterator[Site]:
    if chromium() is None:
        missing("There is no Chromium: apt-get install chromium.")
    place = install_for_module(conversation("", says("done")))
    make_embedded(place)
    with PageServer(place) as server, open_site(server) as opened:
        yield opened


async def waiting_run(hands: Hands, access: str, wait_seconds: float) -> tuple[str, str]:
    """A run with two tasks that wait for a model, and one of these."""
    run_id = await hands.submit("Review the bakery", model=f"chat/of-{access}")
    [run] = await hands.claim(run_id)
    tasks = [
        await hands.start(run, description=f"review {one}", model=f"chat/of-{access}")
        for one in ("prices", "stock")
    ]
    closed = await close(hands, access, wait_seconds)
    wait = ModelWait(closed, (access,), HOUR, HOUR, was_answered=False)
    for task in tasks:
        assert await hands.ledger.park_for_model(task, wait, "") == "waiting"
    return run_id, tasks[0].spec.id


def is_trial(answer: object) -> bool:
    return answer is True


async def close(
    hands: Hands, access: str, wait_seconds: float, request: str = "first"
) -> ClosedModel:
    closed = await hands.ledger.models.close(
        access,
        "gemini-2.5-pro",
        ModelState.EXHAUSTED,
        "has no quota left (402)",
        request=request,
        wait_seconds=wait_seconds,
        must_have_worked=False,
        failed_for_seconds=None,
    )
    assert closed is not None
    return closed


def test_a_run_and_its_jobs_say_until_when_they_wait_for_a_model(site: Site) -> None:
    run_id, job_id = site.server.call(waiting_run(site.server.hands, "a", HOUR))
    visited = site.visit(viewport=PHONE)
    page = visited.open(f"?run={run_id}", ".facts .wide")
    expect(page.locator(".facts .wide dd")).to_contain_text(f"2 jobs: {WHY}")
    expect(page.locator(".bar-row").nth(2)).to_contain_text(re.compile(rf"{UNTIL}: model"))
    assert find_problems(page) == []

    page = visited.open(f"?job={job_id}", ".now-line")
    expect(page.locator(".now-text")).to_contain_text(WHY)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page = visited.open(f"?q={job_id}&all=1", ".job-row .title")
    expect(page.locator(".job-row:not(.head) .state-cell")).to_contain_text(
        re.compile(f"waiting, {UNTIL}")
    )
    visited.check()


def test_a_run_does_not_go_on_saying_a_time_that_has_passed(site: Site) -> None:
    hands = site.server.hands
    run_id, _ = site.server.call(waiting_run(hands, "b", 1))
    visited = site.visit()
    page = visited.open(f"?run={run_id}", ".facts .wide")
    before = page.locator(".facts .wide dd").inner_text()

    async def fail_again() -> None:  # as a job of another run tells it: nothing changes here
        await eventually(lambda: hands.ledger.models.ask("b", "gemini-2.5-pro", "trial"), is_trial)
        await close(hands, "b", HOUR, "trial")

    site.server.call(fail_again())

    expect(page.locator(".facts .wide dd")).not_to_have_text(before)
    expect(page.locator(".facts .wide dd")).to_contain_text(WHY)
    visited.check()
