"""The page in a headless Chromium, on a real server, with jobs that were made by hand."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from fanout.orchestrator.jobs.store.journal import EventType
from tests.conftest import missing
from tests.integration.page import showcase
from tests.integration.page.browser import (
    CONTRAST,
    FOREIGN,
    PHONE,
    Site,
    chromium,
    find_problems,
    open_site,
)
from tests.integration.page.hostile import TEXTS, hostile_jobs
from tests.integration.page.served_page import PageServer
from tests.served import make_key
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

TABS = ("conversation", "changes", "result", "task")
SHOWN = {"conversation": ".item", "changes": ".side", "?view=approvals": ".card"}
"""What is there when an address has shown what it is for."""


@dataclass
class Bakery(Site):
    """A site whose jobs are those of a bakery."""

    live: str
    ended: str
    others: list[str]


@pytest.fixture(scope="module")
def site(install_for_module: Installer) -> Iterator[Bakery]:
    if chromium() is None:
        missing("There is no Chromium: apt-get install chromium.")
    with PageServer(install_for_module()) as server, open_site(server) as opened:
        others = server.call(showcase.other_runs(server.hands, 30))
        ended = server.call(showcase.ended_run(server.hands))
        live = server.call(showcase.run_of_the_bakery(server.hands))
        yield Bakery(server, opened.browser, opened.session, live, ended, others)


def titles(page: Page) -> list[str]:
    return page.locator(".job-row .title").all_text_contents()


def test_the_list_is_searched_filtered_and_live(site):
    watched = site.visit()
    page = watched.open("", ".job-row .title")
    expect(page.locator(".count")).to_have_text("32 runs")

    page.fill("input[type=search]", "billing")
    expect(page.locator(".count")).to_have_text("10 runs")
    assert all("billing" in title for title in titles(page))
    page.click(".chips .state-failed")
    expect(page.locator(".count")).to_have_text("2 runs")
    assert "q=billing" in page.url
    assert "state=failed" in page.url
    page.reload()
    expect(page.locator(".count")).to_have_text("2 runs")
    page.go_back()
    expect(page.locator(".count")).to_have_text("10 runs")
    page.fill("[aria-label=Label]", "team=none")
    page.press("[aria-label=Label]", "Enter")
    expect(page.locator(".empty")).to_contain_text("No job fits")

    page.click("nav a >> text=Runs")
    expect(page.locator(".count")).to_have_text("32 runs")
    new = site.server.call(site.server.hands.submit("A job that came later"))
    expect(page.locator(".job-row .title").first).to_have_text("A job that came later")
    [claim] = site.server.call(site.server.hands.claim(new))
    hands = site.server.hands
    site.server.call(hands.note(new, EventType.LOG, "reads the manual", text="reads the manual"))
    row = page.locator(".job-row", has_text="A job that came later")
    expect(row).to_contain_text("reads the manual")
    site.server.call(hands.finish(claim))
    expect(row.locator(".state")).to_have_text("succeeded")
    watched.check()


def test_a_job_shows_its_tree_conversation_plan_result_and_changes(site):
    watched = site.visit()
    page = watched.open(f"?job={site.live}", ".item")
    expect(page.locator("[role=treeitem]")).to_have_count(4)
    expect(page.locator("[role=treeitem]").nth(1)).to_contain_text("tester")
    expect(page.locator("[role=treeitem]").nth(1)).to_contain_text("5.4K")
    expect(page.locator(".plan summary")).to_contain_text("1 of 3 done")
    expect(page.locator(".child-card").first).to_contain_text(showcase.SUMMARY)
    hands = site.server.hands
    text = "It goes on\n\nwith a second paragraph"
    site.server.call(hands.note(site.live, EventType.MODEL_REPLY, text=text))
    expect(page.locator(".bubble p", has_text="with a second paragraph")).to_be_visible()
    page.fill("[aria-label='Message to the agent']", "Look at the VAT, too")
    page.click("button >> text=Tell")
    expect(page.locator(".of-person", has_text="Look at the VAT, too")).to_be_visible()

    page.click(".plan summary")
    expect(page.locator(".todo-in_progress")).to_contain_text("Mend the sum")
    page.click("#tab-changes")
    expect(page.locator(".side")).to_have_count(2)
    expect(page.locator(".side .del").first).to_contain_text("only the last one counts")
    expect(page.locator(".side .add").first).to_contain_text("item.count")

    page.click("[role=treeitem] >> nth=1")
    expect(page.locator("h1")).to_have_text("Find out why test_prices fails")
    page.click("#tab-result")
    expect(page.locator(".result")).to_contain_text(showcase.SUMMARY)
    expect(page.locator(".result")).to_contain_text("13 passed")
    page.click("#tab-changes")
    expect(page.locator(".diff .add mark").first).to_be_visible()
    expect(page.locator(".diff .t-keyword").first).to_be_visible()
    page.click(".file >> text=large.txt")
    expect(page.locator(".diff")).to_contain_text("line 3:")
    page.locator(".diff").evaluate("(element) => { element.scrollTop = element.scrollHeight; }")
    expect(page.locator(".diff")).to_contain_text("line 99999:")
    assert page.locator(".diff-row").count() < 200
    watched.check()


def test_jobs_are_submitted_cancelled_and_retried(site, tmp_path):
    (tmp_path / "notes.md").write_text("read me")
    archive = tmp_path / "workspace.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        made.add(tmp_path / "notes.md", "notes.md")
    watched = site.visit()
    page = watched.open("?view=new", "option")
    page.select_option("select", "tester")
    page.fill("textarea >> nth=0", "Test it from the browser")
    page.click("summary >> text=Labels")
    page.fill("textarea >> nth=2", "from=page")
    page.set_input_files("input[type=file]", archive)
    page.click("button >> text=Submit")
    expect(page.locator(".job-head")).to_contain_text("from=page")
    job_id = page.url.partition("job=")[2]
    record = site.server.call(site.server.hands.client.get(job_id))
    assert (record.agent, record.labels) == ("tester", {"from": "page"})
    assert record.snapshot is not None

    page.click("button >> text=Cancel")
    page.click("dialog button >> text=Let it run")
    expect(page.locator("dialog")).to_have_count(0)
    page.click("button >> text=Cancel")
    page.click("dialog button >> text=Cancel the run")
    expect(page.locator(".facts .state")).to_have_text("cancelled")
    page.click("button >> text=Retry")
    expect(page.locator(".facts .state")).to_have_text("queued")
    assert job_id not in page.url
    watched.check()


def test_approvals_show_the_exact_call_and_take_every_decision(site):
    hands = site.server.hands
    ids = [site.server.call(hands.submit(f"Ask {number}")) for number in range(3)]
    claims = site.server.call(hands.claim(*ids))
    watched = site.visit()
    page = watched.open("?view=approvals", ".card")
    card = page.locator(".card", has_text="rsync -a dist/ shop.example.com:/srv/prices/")
    expect(card).to_be_visible()
    before = int(page.locator("nav .badge").inner_text())
    command = {"command": "rm -r build\n  && make", "env": {"A": "1"}}
    for claim in claims:
        site.server.call(hands.ask(claim, "execute", **command))
    expect(page.locator("nav .badge")).to_have_text(str(before + 3))

    first, second, third = (
        page.locator(".card", has=page.locator(f"a[href='?job={job_id}']")) for job_id in ids
    )
    expect(first.locator("pre").first).to_have_text(command["command"])
    first.locator("[aria-label='Message to the agent']").fill("go on")
    second.locator("button >> text=Edit").click()
    second.locator("textarea").fill("no JSON")
    second.locator("button >> text=Send").click()
    expect(page.locator(".notice.problem")).to_contain_text("JSON object")
    second.locator("textarea").fill(json.dumps({"command": "make"}))
    second.locator("button >> text=Send").click()
    expect(second).to_have_count(0)
    third.locator("button >> text=Reject").click()
    expect(third).to_have_count(0)
    first.locator("button >> text=Approve").click()  # what was typed in it was kept
    expect(page.locator("nav .badge")).to_have_text(str(before))

    decisions = [final_answer(site, job_id) for job_id in ids]
    assert [one["decision"] for one in decisions] == ["approve", "edit", "reject"]
    assert decisions[0]["message"] == "go on"
    assert decisions[1]["arguments"] == {"command": "make"}
    assert all(one["person"] for one in decisions)
    watched.check()


def final_answer(site: Bakery, job_id: str) -> dict[str, Any]:
    events = site.server.call(site.server.hands.client.read_events(job_id, "0-0", 100))
    return next(one.data for one in events if one.type is EventType.APPROVAL_RESOLVED)


def test_what_a_hostile_model_writes_stays_text(site):
    running, ended, waiting = site.server.call(hostile_jobs(site.server.hands))
    watched = site.visit()
    for job_id in (running, ended, waiting):
        page = watched.open(f"?job={job_id}", ".item")
        page.click("[role=switch]")
        page.evaluate(
            "document.querySelectorAll('.tool-line, summary').forEach((one) => one.click())"
        )
        assert page.evaluate(FOREIGN) == []
        page.click("[role=switch]")
        for tab in TABS[1:]:
            page.click(f"#tab-{tab}")
            expect(page.locator(f"#panel-{tab} > *").first).to_be_attached()
        watched.check()
    page = watched.open(f"?job={ended}&tab=changes", ".diff")
    page.evaluate("document.querySelectorAll('.file').forEach((one) => one.click())")
    expect(page.locator(".diff")).to_contain_text("<script>alert(1)</script>")
    page = watched.open("?view=approvals", ".card")
    expect(page.locator(".card h2", has_text="<img src=x onerror=alert(2)>")).to_be_visible()
    expect(page.locator(".card").first).to_be_visible()
    page = watched.open("?q=" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E&all=1", ".job-row .title")
    assert page.evaluate(FOREIGN) == []
    page = watched.open(f"?job={running}&tab=task", ".markdown")
    assert page.evaluate(FOREIGN) == []
    task = page.locator(".markdown").first.inner_text()
    assert "\u202e" not in task
    assert "⟨U+202E⟩gnp.exe" in task
    assert TEXTS[0] in task
    assert page.evaluate("[({}).polluted, document.querySelectorAll('[action]').length]") == [
        None,
        0,
    ]
    watched.check()


def test_everything_can_be_done_with_the_keyboard(site):
    watched = site.visit()
    page = watched.open("", ".job-row .title")
    keys = page.keyboard
    keys.press("?")
    expect(page.locator("dialog")).to_contain_text("Keyboard")
    keys.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    keys.press("/")
    keys.type("bakery")
    expect(page.locator(".count")).to_have_text("1 run")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    page.evaluate("document.activeElement.blur()")
    keys.press("j")
    outline = "getComputedStyle(document.activeElement, '::after').outlineStyle"
    assert page.evaluate(outline) == "solid"
    keys.press("Enter")
    expect(page.locator("h1")).to_contain_text("bakery")
    expect(page.locator(".bar-row .name")).to_have_count(4)
    keys.press("j")
    keys.press("Enter")
    expect(page.locator("[role=treeitem]")).to_have_count(4)
    keys.press("2")
    expect(page.locator("#tab-changes")).to_have_attribute("aria-selected", "true")
    page.focus("#tab-changes")
    keys.press("ArrowRight")
    expect(page.locator("#tab-result")).to_be_focused()
    keys.press("Tab")  # from the tabs into the panel or past it, never back into the tabs
    assert page.evaluate("document.activeElement.role") != "tab"
    page.evaluate("document.activeElement.blur()")
    keys.press("j")
    keys.press("j")
    keys.press("Enter")
    expect(page.locator("h1")).to_have_text("Find out why test_prices fails")
    keys.press("u")
    expect(page.locator(".count")).to_have_text("1 run")
    keys.press("a")
    expect(page.locator("h1")).to_have_text("Approvals")
    keys.press("n")
    expect(page.locator("h1")).to_have_text("New job")
    seen = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(30):
        keys.press("Tab")
        seen.add(page.evaluate("document.activeElement.tagName"))
    assert {"A", "SELECT", "TEXTAREA", "INPUT", "SUMMARY", "BUTTON"} <= seen
    watched.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_readable_in_both_schemes(site, scheme):
    addresses = ["", "?view=approvals", "?view=new"]
    addresses += [f"?job={site.live}&tab={tab}" for tab in TABS]
    watched = site.visit(viewport=PHONE, color_scheme=scheme, is_mobile=True, has_touch=True)
    for address in addresses:
        page = watched.open(address)
        page.wait_for_selector(SHOWN.get(address.rpartition("tab=")[2], "h1"), state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
        assert page.evaluate(CONTRAST) == [], address
    page.emulate_media(reduced_motion="reduce")
    animated = "document.getAnimations().length"
    assert page.evaluate(animated) == 0
    watched.check()


def test_every_view_is_valid_aria_and_accessible(site):
    watched = site.visit()
    addresses = ["", "?view=approvals", "?view=new"]
    addresses += [f"?job={site.live}&tab={tab}" for tab in TABS]
    for address in addresses:
        page = watched.open(address)
        page.wait_for_selector(SHOWN.get(address.rpartition("tab=")[2], "h1"), state="attached")
        if not address:
            page.wait_for_selector(".job-row .title")
        assert find_problems(page) == [], address
    watched.check()


def test_who_is_not_logged_in_sees_nothing_and_who_may_only_read_changes_nothing(site):
    stranger = site.visit(storage_state=None)
    page = stranger.page
    page.goto(site.server.url)
    page.click("a >> text=Log in")
    page.fill("#key", "fo_wrong_key")
    page.click("button")
    expect(page.locator("[role=alert]")).to_be_visible()
    page.fill("#key", reading_key(site))
    page.click("button")
    expect(page.locator(".empty")).to_contain_text("no jobs yet")
    assert page.locator("nav a", has_text="New job").count() == 0
    page.goto(f"{site.server.url}/?job={site.live}")
    expect(page.locator("[role=alert]")).to_contain_text("There is no job")
    page.click("button >> text=Log out")
    page.wait_for_url(re.compile("/login"))
    page.goto(f"{site.server.url}/?job={site.live}")
    expect(page.locator("h1")).to_have_text("You are not logged in")
    refused = [fault for fault in stranger.faults if "Failed to load resource" not in fault]
    assert refused == []


def reading_key(site: Bakery) -> str:
    return site.server.call(make_key(site.server.place, "reader", "read"))


def test_a_session_that_ends_while_an_answer_is_awaited_is_no_fault_of_the_page(site):
    watched = site.visit()
    problem = {"status": 401, "detail": "Send a key."}
    watched.page.route("**/v1/agents", lambda route: route.fulfill(status=401, json=problem))
    page = watched.open("")
    expect(page.locator("h1")).to_have_text("You are not logged in")
    page.wait_for_timeout(200)  # rejections are reported after the answer
    assert [fault for fault in watched.faults if "Failed to load resource" not in fault] == []


class FailingService:
    """Fails requests of a page before they reach the service: the first two of each path.

    Args:
        page: The page, before it has asked for anything.
    """

    def __init__(self, page: Page) -> None:
        self.failures = Counter[str]()
        page.route(re.compile(r"/session$|/v1/"), self._answer)

    def _answer(self, route: Route) -> None:
        path = urlsplit(route.request.url).path
        if self.is_over(path):
            route.continue_()
            return
        self.failures[path] += 1
        if self.failures[path] == 1:
            route.abort("connectionreset")
        else:
            route.fulfill(status=503, json={"status": 503, "detail": "Redis does not respond."})

    def is_over(self, path: str) -> bool:
        """Whether the service answers."""
        return self.failures[path] == 2


class AbsentService(FailingService):
    """Fails until it is there."""

    is_there = False

    def is_over(self, path: str) -> bool:
        del path
        return self.is_there


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("?job={job}&tab=changes", ".side"),
        ("?job={job}", ".item"),
        ("?run={job}", ".run-bar"),
        ("?view=approvals", ".card"),
        ("?view=new", "option"),
        ("", ".job-row .title"),
    ],
)
def test_a_read_that_fails_is_repeated_so_that_no_view_stays_empty(site, address, shown):
    watched = site.visit()
    service = FailingService(watched.page)
    watched.open(address.format(job=site.live), shown)
    assert service.failures["/session"] == 2


def test_an_outage_is_announced_once_and_the_page_shows_everything_after_it(site):
    watched = site.visit()
    service = AbsentService(watched.page)
    page = watched.open("?view=approvals", ".notice.problem")
    said = page.locator(".notice.problem")
    expect(said).to_contain_text("Redis does not respond. The page tries again.")
    service.is_there = True
    expect(page.locator(".card").first).to_be_visible()
    expect(said).to_have_count(0)


@pytest.mark.parametrize("name", ["main.js", "latest.js"])
def test_a_page_of_which_a_file_does_not_come_is_loaded_again(site, name):
    watched = site.visit()
    watched.page.route(f"**/static/{name}", lambda route: route.abort("connectionreset"), times=1)
    watched.open("", ".job-row .title")
