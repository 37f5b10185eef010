"""Runs, their timeline, the list and the choice of a folder, in a headless Chromium."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from playwright.sync_api import APIResponse, Page, Route, expect
from playwright.sync_api import Error as PlaywrightError

from docs.generate import page_pictures
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.conftest import missing
from tests.integration.page import showcase
from tests.integration.page.browser import (
    CONTRAST,
    DESKTOP,
    FOREIGN,
    PHONE,
    chromium,
    find_problems,
    open_site,
)
from tests.integration.page.served_page import PageServer, make_embedded
from tests.integration.page.test_page import Bakery, titles
from tests.integration.scripts import conversation, says
from tests.served import make_key
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

BEGIN = dt.datetime(2026, 11, 24, 14, 2, tzinfo=dt.UTC).timestamp()
"""When the run of the migration was submitted."""
SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) {
    if (one.hadRecentInput) continue;
    const moved = (each) => [each.node?.outerHTML?.slice(0, 90), each.previousRect, each.currentRect];
    window.shifts.push(...one.sources.map(moved));
  }
}).observe({type: "layout-shift", buffered: true});
"""


SCROLLED_SIDEWAYS = """[...document.querySelectorAll("main *")].filter((one) =>
  one.scrollWidth > one.clientWidth + 1
  && ["auto", "scroll"].includes(getComputedStyle(one).overflowX)
).map((one) => one.className)"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A person's home folder with a project in it."""
    home = tmp_path_factory.mktemp("home")
    project = home / "bakery"
    project.mkdir()
    (home / ".ssh").mkdir()
    (project / "prices.py").write_text(showcase.BEFORE)
    (project / "notes.log").write_text("not for agents")
    (project / ".gitignore").write_text("*.log\n")
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    return home


@pytest.fixture(scope="module")
def site(install_for_module: Installer, home: Path) -> Iterator[Bakery]:
    if chromium() is None:
        missing("There is no Chromium: apt-get install chromium.")
    place = install_for_module(conversation("", says("done")))  # its model needs no key
    make_embedded(place)
    with PageServer(place, HOME=str(home), TZ="UTC") as server, open_site(server) as opened:
        others = server.call(showcase.submission(server.hands, 50))
        ended = server.call(showcase.migration_run(server.hands, BEGIN))
        live = server.call(showcase.run_of_the_bakery(server.hands))
        yield Bakery(server, opened.browser, opened.session, live, ended, others)


def row(page: Page, text: str):
    return page.locator(".bar-row", has=page.locator(f".name:text-is('{text}')"))


def phases(page: Page, text: str) -> list[str]:
    bars = row(page, text).locator(".run-bar")
    return [re.sub(r".*is-(\w+).*", r"\1", one.get_attribute("class")) for one in bars.all()]


def test_a_run_is_a_timeline_with_its_phases_marks_and_sums(site):
    watched = site.visit(timezone_id="UTC")
    page = watched.open(f"?run={site.ended}", ".track .run-bar")

    assert phases(page, f"coordinator: {showcase.LIBRARY}") == [
        "queued", "running", "waiting", "running", "landing", "verifying", "landing", "running"
    ]  # fmt: skip
    assert phases(page, "refactorer: Move catalog over") == [
        "queued",
        "running",
        "verifying",
        "running",
    ]
    root, child = (
        row(page, text).locator(".run-bar.is-running").first.bounding_box()
        for text in (f"coordinator: {showcase.LIBRARY}", "refactorer: Move catalog over")
    )
    assert root["x"] < child["x"], "what began later is further to the right"
    assert child["width"] > root["width"] * 2
    expect(row(page, "refactorer: Move catalog over").locator(".cost")).to_have_text("$0.006")
    expect(page.locator(".tick").nth(1)).to_have_text("30s")

    failed = row(page, "refactorer: Move reports over").locator(".run-mark")
    expect(failed).to_have_class("run-mark is-failed")
    expect(failed).to_have_attribute("title", re.compile("2 tests of 31 fail"))
    unmerged = row(page, "tester: Move billing over")
    expect(unmerged.locator(".run-mark")).to_have_class("run-mark is-conflict")
    expect(unmerged.locator(".run-note")).to_have_text(
        "Not merged: billing/rates.py: both sides changed the same lines"
    )
    expect(page.locator(".wrong li")).to_have_count(2)
    facts = dict(
        zip(
            *(page.locator(f".facts {one}").all_text_contents() for one in ("dt", "dd")),
            strict=True,
        )
    )
    assert facts["State"] == "succeeded, 1 not merged, 1 failed"
    assert facts["Time"] == "2m 51s"
    assert facts["Jobs"] == "6 succeeded, 1 failed"
    assert facts["Cost"] == "$0.17"
    assert facts["Tokens"] == "260.6K in 48 calls"
    costs = [float(one.strip("$")) for one in page.locator(".bar-row .cost").all_text_contents()]
    assert sum(costs) == pytest.approx(0.167, abs=0.01), "the rows add up to the sum of the run"
    said = row(page, "tester: Move billing over").locator(".bars .sr").text_content()
    assert "queued from 14:02:12 for 41s" in said
    assert said.endswith("Not merged: billing/rates.py: both sides changed the same lines")
    unmerged.locator(".name").click()
    expect(page.locator("h1")).to_have_text("Move billing over")
    page.click("text=Timeline of the run")
    expect(page.locator(".bar-row .name")).to_have_count(7)
    watched.check()


@pytest.mark.parametrize("address", ["", "?run={}", "?job={}"])
def test_a_run_with_a_failed_task_and_unmerged_changes_is_not_plain_green(site, address):
    watched = site.visit()
    page = watched.open(address.format(site.ended), "a")
    if address.startswith("?job"):
        expect(page.locator("[role=treeitem]").first).to_contain_text(
            "succeeded, 1 not merged, 1 failed"
        )
    else:
        badge = page.locator(".state-mixed")
        expect(badge).to_contain_text("succeeded")
        expect(badge).to_contain_text("1 not merged, 1 failed")
        assert page.evaluate(
            "getComputedStyle(document.querySelector('.state-mixed')).color"
            " !== getComputedStyle(document.querySelector('.state-succeeded') ?? document.body).color"
        )
    watched.check()


def test_a_live_run_grows_and_is_approved_told_and_cancelled_where_its_timeline_is(site):
    call, hands = site.server.call, site.server.hands
    root = call(hands.submit("Publish all prices", agent="coordinator"))
    [claim] = call(hands.claim(root))
    child = call(hands.start(claim, agent="tester", description="Ask first"))
    watched = site.visit()
    page = watched.open(f"?run={root}", ".track .run-bar")
    expect(row(page, "tester: Ask first").locator(".is-live")).to_have_count(1)
    widths = "document.querySelector('.bar-row .is-live').getBoundingClientRect().right"
    assert page.evaluate(widths) > 0

    call(hands.ask(child, "execute", command="rsync dist/ shop:"))
    expect(page.locator(".card")).to_contain_text("rsync dist/ shop:")
    expect(row(page, "tester: Ask first").locator(".run-note")).to_have_text(
        "waits for your decision"
    )
    expect(row(page, "tester: Ask first").locator(".is-waiting")).to_have_count(1)
    page.click(".card button >> text=Approve")
    expect(page.locator(".card")).to_have_count(0)
    [claim_again] = call(hands.claim(child.spec.id))
    call(
        hands.finish(
            claim_again,
            state=JobState.FAILED,
            error={"type": "AgentFailed", "message": "It broke."},
        )
    )
    expect(page.locator(".wrong")).to_contain_text("It broke.")
    expect(page.locator(".facts .state")).to_contain_text("1 failed")
    late = call(hands.start(claim, agent="refactorer", description="Came later"))
    expect(row(page, "refactorer: Came later")).to_have_count(1)
    landed = {"id": late.spec.id, "outcome": "sent back", "reason": "It breaks the tests."}
    call(hands.note(root, EventType.CHILD_LANDED, **landed))
    expect(row(page, "refactorer: Came later").locator(".is-setback")).to_have_count(1)

    page.fill("[aria-label='Message to the agent']", "Mind the VAT")
    page.click("button >> text=Tell")
    expect(page.locator("#notices")).to_contain_text("before its next step")
    page.click("button >> text=Cancel")
    expect(page.locator("dialog")).to_contain_text("1 job below it")
    page.click("dialog button >> text=Let it run")
    watched.check()


def test_a_timeline_is_zoomed_by_buttons_keys_and_drawing_along_its_axis(site):
    watched = site.visit(timezone_id="UTC")
    page = watched.open(f"?run={site.ended}", ".track .run-bar")
    root = row(page, f"coordinator: {showcase.LIBRARY}").locator(".run-bar")
    shown = "aria-valuetext"
    slider = page.get_by_label("Shown part of the run")
    expect(root).to_have_count(8)
    expect(slider).to_be_hidden()
    whole = page.locator(".bar-row .run-bar").first.bounding_box()["width"]

    page.get_by_role("button", name="Zoom in").click()
    expect(slider).to_have_attribute(shown, "from 42s to 2m 8s of 2m 51s")
    page.keyboard.press("+")
    expect(slider).to_have_attribute(shown, "from 1m 4s to 1m 46s of 2m 51s")
    assert root.count() < 8, "what was before and after is not drawn"
    page.keyboard.press("Shift+ArrowLeft")
    expect(slider).to_have_attribute(shown, "from 53s to 1m 36s of 2m 51s")
    slider.focus()
    page.keyboard.press("Home")
    expect(slider).to_have_attribute(shown, "from 0s to 42s of 2m 51s")
    expect(page.locator(".tick").first).to_have_text("0")
    assert page.locator(".bar-row .run-bar").first.bounding_box()["width"] > 3 * whole
    page.get_by_role("button", name="Show the whole run").click()
    expect(root).to_have_count(8)
    expect(slider).to_be_hidden()

    axis = page.locator(".axis").bounding_box()
    middle = axis["y"] + axis["height"] / 2
    page.mouse.move(axis["x"] + axis["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(axis["x"] + axis["width"] + 50, middle, steps=3)
    page.mouse.up()
    expect(slider).to_have_attribute(shown, "from 1m 25s to 2m 51s of 2m 51s")
    page.keyboard.press("0")
    expect(root).to_have_count(8)
    watched.check()


def test_a_verification_is_on_the_timeline_while_it_runs(site):
    call, hands = site.server.call, site.server.hands
    [claim] = call(hands.claim(call(hands.submit("Verify for long", verify="make test"))))
    page = (watched := site.visit()).open(f"?run={claim.spec.id}", ".track .run-bar")
    expect(page.locator(".track .is-verifying")).to_have_count(0)

    activity = {"kind": "verification", "seconds": 0.0, "of_attempt": 1}
    noted = {claim.spec.id: (claim.token, json.dumps(activity))}
    call(hands.ledger.note_activities(noted))
    expect(page.locator(".track .is-verifying.is-live")).to_have_count(1)
    call(hands.note(claim.spec.id, EventType.VERIFY, seconds=0.0, exit_code=0))
    call(hands.finish(claim))
    expect(page.locator(".facts .state")).to_have_text("succeeded")
    expect(page.locator(".track .is-live")).to_have_count(0)
    watched.check()


def test_more_jobs_than_are_sorted_at_once_are_announced_and_read_on_demand(site):
    watched = site.visit()
    page = watched.page
    known: list[dict[str, Any]] = []

    def a_page_of_many(route: Route) -> None:
        known[:] = known or route.fetch().json()["items"]
        cursor = re.search(r"cursor=after-([0-9]+)", route.request.url)
        number = int(cursor[1]) + 1 if cursor else 1
        items = [
            known[0] | {"id": f"{number:04}{place:04}{known[0]['id'][8:]}", "batch": None}
            for place in range(200)
        ]
        more = None if number == MOST_PAGES else f"after-{number}"
        route.fulfill(json={"items": items, "next_cursor": more})

    page.route(re.compile(r"/v1/jobs\?"), a_page_of_many)
    page.goto(f"{site.server.url}/?sort=cost&all=1&q=chapter")
    expect(page.locator(".partial")).to_contain_text("Only the newest 2,000 jobs", timeout=60_000)
    page.get_by_role("button", name="Read 2,000 more").click()
    expect(page.locator(".partial")).to_be_hidden(timeout=60_000)
    expect(page.locator(".count")).to_have_text("2,400 jobs")
    watched.check()


def test_ids_commands_and_code_are_copied(site):
    call, hands = site.server.call, site.server.hands
    job_id = call(hands.submit("Copy from it"))
    [claim] = call(hands.claim(job_id))
    reply = "Run this:\n\n```sh\nmake install\n```"
    call(hands.note(job_id, EventType.MODEL_REPLY, text=reply))
    call(hands.finish(claim))
    watched = site.visit(permissions=["clipboard-read", "clipboard-write"])
    page = watched.open(f"?job={job_id}", ".markdown pre.code")
    page.get_by_role("button", name="Copy the code").click()
    expect(page.locator("#notices")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "make install"
    page.get_by_role("button", name="Copy the id").press("Enter")
    expect(page.locator("#notices .notice")).to_have_count(2)
    assert page.evaluate("navigator.clipboard.readText()") == job_id
    watched.check()


def test_hundreds_of_rows_stay_few_elements_and_everything_works_by_keyboard(site):
    call, hands = site.server.call, site.server.hands
    many = call(showcase.submission(hands, 400, agent="tester"))
    watched = site.visit()
    page = watched.open(f"?run={many[0]}", ".track .run-bar")
    expect(page.locator("h1")).to_have_text("400 jobs, submitted together")
    assert page.locator(".bar-row:not(.head)").count() < 60
    grid = page.locator("[role=treegrid]")
    expect(grid).to_have_attribute("aria-rowcount", "401")
    keys = page.keyboard
    keys.press("j")
    keys.press("End")
    expect(page.locator(".name:focus")).to_have_text("tester: Check the links of chapter 399")
    assert page.locator(".bar-row:not(.head)").count() < 80

    page.goto(f"{site.server.url}/?run={site.ended}")
    page.wait_for_selector(".track .run-bar")
    keys.press("j")
    keys.press("ArrowLeft")
    expect(page.locator(".bar-row .name")).to_have_count(1)
    expect(page.locator(".bar-row[aria-expanded=false]")).to_have_count(1)
    keys.press("ArrowRight")
    expect(page.locator(".bar-row .name")).to_have_count(7)
    keys.press("ArrowDown")
    expect(page.locator(".name:focus")).to_have_text("refactorer: Move catalog over")
    keys.press("ArrowLeft")
    expect(page.locator(".name:focus")).to_contain_text("coordinator")
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.locator("h1")).to_have_text("Move catalog over")
    watched.check()


def test_what_was_submitted_together_is_one_row_that_opens_and_so_is_a_run(site):
    watched = site.visit()
    page = watched.open("?q=chapter", ".job-row .title")
    group = page.locator(".job-row", has_text="50 jobs: Check the links of chapter 0")
    expect(group.locator(".state")).to_contain_text("16 of 50 ended")
    expect(group.locator(".cost")).to_have_text("$0.03")
    call, hands = site.server.call, site.server.hands
    batch = [(make_spec(f"Translate page {number}"), None) for number in range(3)]
    call(hands.client.submit_many(batch))
    call(hands.submit("Translate alone"))
    page.goto(f"{site.server.url}/?q=Translate")
    expect(page.locator(".count")).to_have_text("2 runs")
    page.locator("button.title").click()
    expect(page.locator(".job-row .title")).to_have_count(5)

    page.goto(f"{site.server.url}/?q=Move+the+services")
    expect(page.locator(".count")).to_have_text("1 run")
    run = page.locator(".job-row.opens")
    run.locator(".toggle").click()
    expect(run).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".job-row .title")).to_have_count(8 - 1)
    assert titles(page)[1] == "Move catalog over"
    page.keyboard.press("j")
    page.keyboard.press("ArrowLeft")  # to the row that it belongs to
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".job-row .title")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".job-row .title")).to_have_count(7)

    page.goto(f"{site.server.url}/?q=chapter")
    group.locator(".toggle").click()
    expect(page.locator(".job-row[aria-level='2']").first).to_contain_text("chapter 0")
    one, some = (page.locator(".job-row").nth(at).locator(".task").bounding_box() for at in (1, 2))
    assert one["width"] > 0
    empty = page.locator(".job-row.no-event .task").first.bounding_box()
    assert (
        empty["width"] > page.locator(".job-row.head > span").nth(1).bounding_box()["width"] + 100
    )
    group.locator(".title").click()
    expect(page.locator("h1")).to_have_text("50 jobs, submitted together")
    page.click("button >> text=Cancel all")
    expect(page.locator("dialog")).to_contain_text("that have not ended")
    page.click("dialog button >> text=Let them run")
    watched.check()
    del some


def test_the_list_is_sorted_by_time_state_agent_and_cost_and_its_days_have_names(site):
    call, hands = site.server.call, site.server.hands
    now = dt.datetime(2026, 11, 26, 18, 0, tzinfo=dt.UTC)
    days = {
        "sorted today": (now.replace(hour=9, minute=5), "today 09:05", 0.5, "tester"),
        "sorted yesterday": (now - dt.timedelta(hours=19), "yesterday 23:00", 0.02, "coordinator"),
        "sorted before": (dt.datetime(2026, 11, 24, 8, tzinfo=dt.UTC), "24 Nov", 3.0, "researcher"),
        "sorted last year": (dt.datetime(2025, 11, 24, tzinfo=dt.UTC), "24 Nov 2025", 0, "tester"),
    }  # fmt: skip
    for name, (at, _, dollars, agent) in days.items():
        job_id = call(hands.submit(name, agent=agent))
        [claim] = call(hands.claim(job_id))
        if dollars:
            call(hands.note(job_id, EventType.LOG, text="x", used={"cost_usd": dollars}))
        if name == "sorted before":
            call(hands.finish(claim))
        call(hands.retime(job_id, "", begin=at.timestamp(), submitted=0))
    watched = site.visit(timezone_id="UTC")
    watched.page.clock.set_fixed_time(now)
    page = watched.open("?q=sorted", ".job-row .title")
    expect(page.locator(".job-row .when")).to_have_text([shown for _, shown, *_ in days.values()])
    assert titles(page) == [*days]

    orders = {
        "Cost": ["sorted before", "sorted today", "sorted yesterday", "sorted last year"],
        "Agent": ["sorted yesterday", "sorted before", "sorted today", "sorted last year"],
        "State": ["sorted today", "sorted yesterday", "sorted last year", "sorted before"],
    }
    for head, order in orders.items():
        column = page.locator(".head [role=columnheader]", has_text=head)
        column.locator("button").click()
        expect(column).to_have_attribute(
            "aria-sort", "descending" if head == "Cost" else "ascending"
        )
        expect(page.locator(".job-row .title").first).to_have_text(order[0])
        assert titles(page) == order, head
    page.click(".head button >> text=State")
    expect(page.locator(".job-row .title").first).to_have_text("sorted before")
    assert "sort=-state" in page.url
    page.reload()
    expect(page.locator(".job-row .title").first).to_have_text("sorted before")
    watched.check()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_list_says_that_it_loads_and_nothing_moves_when_it_is_there(site, size):
    watched = site.visit(viewport=size)
    watched.page.add_init_script(SHIFTS)

    def slowly(route):
        time.sleep(0.3)
        route.continue_()

    watched.page.route("**/v1/jobs?*", slowly)
    page = watched.open("", ".jobs")
    expect(page.locator(".count")).to_have_text("Loading …")
    expect(page.locator(".count")).to_contain_text("runs")
    page.wait_for_selector(".job-row .title")
    assert page.evaluate("window.shifts") == []
    watched.check()


def test_a_folder_of_ones_own_machine_is_chosen_for_a_job_and_its_changes_go_back_there(site, home):
    call, hands = site.server.call, site.server.hands
    watched = site.visit()
    page = watched.open("?view=new", "form")
    page.fill("textarea[required]", "Mend the prices of my folder")
    page.click("button >> text=Choose a folder")
    page.fill("#folder-path", str(home))
    page.click("dialog button >> text=Open")
    expect(page.locator(".folder")).to_have_text(["▸bakery"])
    page.click(".folder")
    expect(page.locator("dialog [role=status]")).to_contain_text("A Git repository")
    page.click("dialog button >> text=Choose this folder")
    expect(page.locator(".chosen-folder")).to_have_text(str(home / "bakery"))
    page.click("button >> text=Submit")
    expect(page.locator("h1")).to_have_text("Mend the prices of my folder")
    job_id = re.search(r"job=([\w-]+)", page.url)[1]
    record = call(hands.client.get(job_id))
    assert record.snapshot is not None

    [claim] = call(hands.claim(job_id))
    after = showcase.AFTER
    changed = showcase.changed_bundle("prices.py", after)
    call(hands.finish(claim, changed))
    page.goto(f"{site.server.url}/?run={job_id}")
    page.click("button >> text=Apply to a folder")
    expect(page.locator("#folder-path")).to_have_value(str(home / "bakery"))
    page.click("dialog button >> text=Choose this folder")
    expect(page.locator("dialog")).to_contain_text(f"in {home / 'bakery'}?")
    page.click("dialog button >> text=Apply")
    expect(page.locator("#notices")).to_contain_text("Applied")
    assert (home / "bakery" / "prices.py").read_text() == after
    watched.check()


MOST_PAGES = 12
"""Of two hundred jobs: more than the page sorts at once, and less than twice as many."""
HEARD_MS = 500
"""Until a page has heard of a change: less of it would only hide a fault, and show none."""


class HeldAnswer:
    """Holds the answer to the first request of an address back; it is as old as that request."""

    def __init__(self, page: Page, address: str) -> None:
        self._held: list[tuple[Route, APIResponse]] = []
        page.route(re.compile(address), self._hold, times=1)
        self._page = page

    def wait(self) -> None:
        """Wait until the service has answered, and the page has not."""
        while not self._held:
            self._page.wait_for_timeout(20)

    def arrive(self) -> None:
        """Pass the answer on; a page may have given its request up."""
        [(route, answer)] = self._held
        with contextlib.suppress(PlaywrightError):
            route.fulfill(response=answer)
        self._page.evaluate("fetch('/session').then((answer) => answer.json())")

    def _hold(self, route: Route) -> None:
        self._held.append((route, route.fetch()))


class EndingJob:
    """A running job that ends when it is let."""

    def __init__(self, site: Bakery, description: str) -> None:
        self._site = site
        call, hands = site.server.call, site.server.hands
        self.id = call(hands.submit(description))
        [self._claim] = call(hands.claim(self.id))

    def end(self, page: Page) -> None:
        """End it, and give the page time to hear of it."""
        self._site.server.call(self._site.server.hands.finish(self._claim))
        page.wait_for_timeout(HEARD_MS)


def late_folder(site: Bakery, page: Page, home: Path) -> None:
    held = HeldAnswer(page, r"/v1/folders(\?|$)")
    page.goto(f"{site.server.url}/?view=new")
    page.click("button >> text=Choose a folder")
    held.wait()
    page.fill("#folder-path", str(home))
    page.click("dialog button >> text=Open")
    expect(page.locator(".folder")).to_have_text(["▸bakery"])
    held.arrive()
    expect(page.locator(".folder")).to_have_text(["▸bakery"])
    expect(page.locator("#folder-path")).to_have_value(str(home))


def late_folder_while_the_person_types(site: Bakery, page: Page, home: Path) -> None:
    held = HeldAnswer(page, r"/v1/folders(\?|$)")
    page.goto(f"{site.server.url}/?view=new")
    page.click("button >> text=Choose a folder")
    held.wait()
    page.fill("#folder-path", str(home / "bakery"))
    held.arrive()
    expect(page.locator(".folder").first).to_be_visible()
    expect(page.locator("#folder-path")).to_have_value(str(home / "bakery"))
    use = page.locator("dialog button", has_text="Choose this folder")
    expect(use).to_be_disabled()
    page.press("#folder-path", "Enter")
    expect(use).to_be_enabled()
    expect(page.locator("dialog [role=status]")).to_contain_text("A Git repository")


def late_list(site: Bakery, page: Page, home: Path) -> None:
    held = HeldAnswer(page, r"/v1/jobs\?")
    page.goto(site.server.url)
    held.wait()
    page.fill("input[type=search]", "Move the services")
    expect(page.locator(".count")).to_have_text("1 run")
    held.arrive()
    expect(page.locator(".count")).to_have_text("1 run")
    expect(page.locator(".job-row .title")).to_have_count(1)


def late_line_of_a_list(site: Bakery, page: Page, home: Path) -> None:
    job = EndingJob(site, "ends while the list is read")
    held = HeldAnswer(page, r"/v1/jobs\?")
    page.goto(f"{site.server.url}/?q=ends+while+the+list")
    held.wait()
    job.end(page)
    expect(page.locator(".job-row .state")).to_have_text("succeeded")
    held.arrive()
    expect(page.locator(".job-row .state")).to_have_text("succeeded")


def late_run(site: Bakery, page: Page, home: Path) -> None:
    job = EndingJob(site, "ends while its run is read")
    held = HeldAnswer(page, rf"/v1/jobs/{job.id}/tree$")
    page.goto(f"{site.server.url}/?run={job.id}")
    held.wait()
    job.end(page)
    held.arrive()
    expect(page.locator(".facts .state")).to_have_text("succeeded")


def late_job(site: Bakery, page: Page, home: Path) -> None:
    job = EndingJob(site, "ends while it is read")
    held = HeldAnswer(page, rf"/v1/jobs/{job.id}$")
    page.goto(f"{site.server.url}/?job={job.id}")
    held.wait()
    job.end(page)
    held.arrive()
    expect(page.locator(".facts .state")).to_have_text("succeeded")
    expect(page.locator("[role=treeitem]")).to_contain_text("succeeded")


def late_approvals(site: Bakery, page: Page, home: Path) -> None:
    call, hands = site.server.call, site.server.hands
    [claim] = call(hands.claim(call(hands.submit("Ask late"))))
    held = HeldAnswer(page, r"/v1/approvals$")
    page.goto(f"{site.server.url}/?view=approvals")
    held.wait()
    call(hands.ask(claim, "execute", command="make late"))
    page.wait_for_timeout(HEARD_MS)
    held.arrive()
    expect(page.locator(".card", has_text="make late")).to_be_visible()


def late_submission(site: Bakery, page: Page, home: Path) -> None:
    held = HeldAnswer(page, r"/v1/jobs$")
    page.goto(f"{site.server.url}/?view=new")
    page.wait_for_selector("option", state="attached")
    page.fill("textarea[required]", "Submitted while the person goes elsewhere")
    page.click("button >> text=Submit")
    held.wait()
    page.click("nav a >> text=Approvals")
    held.arrive()
    expect(page.locator("#notices")).to_contain_text("Submitted")
    expect(page.locator("h1")).to_have_text("Approvals")


LATE = (
    late_folder,
    late_folder_while_the_person_types,
    late_list,
    late_line_of_a_list,
    late_run,
    late_job,
    late_approvals,
    late_submission,
)


@pytest.mark.parametrize("late", LATE, ids=lambda one: one.__name__)
def test_an_answer_that_comes_late_replaces_nothing_newer(site, home, late):
    watched = site.visit()
    late(site, watched.page, home)
    watched.check()


def test_no_key_and_no_session_of_a_key_reaches_the_folders_of_the_person(site, home):
    place, url = site.server.place, site.server.url
    key = site.server.call(make_key(place, "program", "submit", "read", "approve", "admin"))
    merge = {"job_id": site.ended, "folder": str(home / "bakery")}
    job = {"folder": str(home / "bakery"), "job": {"description": "steal"}}
    requests = [("GET", "/v1/folders", None), ("GET", f"/v1/folders/of/{site.ended}", None)]
    requests += [("POST", "/v1/folders/jobs", job), ("POST", "/v1/folders/merge", merge)]
    same = {"Sec-Fetch-Site": "same-origin"}
    with httpx2.Client(base_url=url) as program, httpx2.Client(base_url=url) as person:
        for method, path, body in requests:
            assert program.request(method, path, json=body).status_code == 401
            headers = {"Authorization": f"Bearer {key}"}
            assert program.request(method, path, json=body, headers=headers).status_code == 404
        program.post("/login", data={"key": key}, headers=same)
        session = program.get("/session", headers=same).json()
        assert session["folders"] is False
        csrf = {**same, "X-CSRF-Token": session["csrf_token"]}
        for method, path, body in requests:
            assert program.request(method, path, json=body, headers=csrf).status_code == 404
        for cookie in site.session["cookies"]:
            person.cookies.set(cookie["name"], cookie["value"])
        assert person.get("/session", headers=same).json()["folders"] is True
        assert person.post("/v1/folders/jobs", json=job, headers=same).status_code == 403
        other = {"Sec-Fetch-Site": "cross-site"}
        assert person.get("/v1/folders", headers=other).status_code == 403
        assert (
            person.get("/v1/folders", headers={**same, "Host": "evil.example"}).status_code == 421
        )
        hidden = person.get("/v1/folders", params={"path": str(home / ".ssh")}, headers=same)
        assert hidden.status_code == 422
        assert "Choose an existing folder" in hidden.json()["detail"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_runs_fit_a_phone_are_readable_and_accessible(site, scheme):
    views = {"": ".job-row .title", "?q=services": ".job-row .title", "?view=new": "form"}
    views |= {f"?run={one}": ".track .run-bar" for one in (site.live, site.ended, site.others[0])}
    for size in (PHONE, DESKTOP):
        watched = site.visit(viewport=size, color_scheme=scheme, is_mobile=size is PHONE)
        for address, shown in views.items():
            page = watched.open(address, shown)
            if "services" in address:
                page.locator(".job-row .toggle").click()
                page.wait_for_selector(".job-row[aria-level='2']")
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], address
            assert page.evaluate(SCROLLED_SIDEWAYS) == [], address
            assert page.evaluate(CONTRAST) == [], address
            assert page.evaluate(FOREIGN) == [], address
            assert find_problems(page) == [], address
            page.emulate_media(reduced_motion="reduce")
            assert page.evaluate("document.getAnimations().length") == 0
            page.emulate_media(reduced_motion=None)
        watched.check()


def test_each_picture_of_the_documentation_is_drawn_and_shows_its_view(site, tmp_path):
    job = site.server.call(showcase.conversation_of_a_release(site.server.hands))
    ids = {"live": site.live, "ended": site.ended, "job": job}
    page_pictures.draw(site, ids, tmp_path)
    for picture in page_pictures.PICTURES:
        drawn = tmp_path / f"{picture.name}.png"
        assert not page_pictures.is_blank(drawn), picture.name
        assert drawn.stat().st_size < page_pictures.MAX_BYTES, picture.name
    white = tmp_path / "white.png"
    Image.new("RGB", (200, 100), "white").save(white)
    assert page_pictures.is_blank(white)
