"""A job's page reads as a conversation: in a headless Chromium, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from fanout.orchestrator.jobs.state import JobState
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
from tests.integration.page.hostile import GROWING
from tests.integration.page.served_page import Hands, PageServer
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

MANY = 900
"""Entries of a long job: more than two pages of them."""


@dataclass
class Release(Site):
    """A site with a job in whose conversation everything happens, and a long one."""

    job: str
    long: str


async def long_job(hands: Hands) -> str:
    job_id = await hands.submit("Count to many", agent="researcher")
    await hands.claim(job_id)
    for number in range(MANY):
        await hands.note(
            job_id, EventType.MODEL_REPLY, author="researcher", text=f"It is {number}."
        )
    return job_id


@pytest.fixture(scope="module")
def site(install_for_module: Installer) -> Iterator[Release]:
    if chromium() is None:
        missing("There is no Chromium: apt-get install chromium.")
    with PageServer(install_for_module()) as server, open_site(server) as opened:
        job = server.call(showcase.conversation_of_a_release(server.hands))
        long = server.call(long_job(server.hands))
        yield Release(server, opened.browser, opened.session, job, long)


def shown(page: Page) -> list[str]:
    """The kinds of the items on the screen, in their order."""
    kinds: list[str] = page.evaluate(
        "[...document.querySelectorAll('.item')].map((one) => one.className.split('item-')[1])"
    )
    return kinds


def test_calls_are_cards_with_their_results_and_what_is_long_is_folded(site):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".item")
    expect(page.locator(".item-end")).to_have_count(0)
    card = page.locator(".tool-card", has_text="python -m pytest -q")
    expect(card.locator(".tool-status")).to_contain_text("exit code 1")
    expect(card.locator("pre")).to_contain_text("3 failed")  # a failure is open, at its end
    assert "test_0.py" not in card.inner_text()
    card.locator("button >> text=Show all 301 lines").click()
    expect(card.locator("pre")).to_contain_text("tests/test_0.py F")

    read = page.locator(".tool-card", has_text="read_file")
    expect(read.locator(".tool-body")).to_be_hidden()  # its result came second in the same entry
    read.locator(".tool-line").press("Enter")
    expect(read.locator("pre")).to_contain_text('VERSION = "0.9"')
    edit = page.locator(".tool-card", has_text="edit_file")
    expect(edit.locator(".del mark")).to_have_text("0.9")
    expect(edit.locator(".add mark")).to_have_text("1.0")
    lost = page.locator(".tool-card", has_text="git fetch --tags")
    expect(lost.locator(".tool-status")).to_have_text("no result")
    expect(lost).to_contain_text("No result came before the agent went on.")
    running = page.locator(".tool-card", has_text="make release")
    expect(running.locator("pre")).to_contain_text("building the wheel")
    expect(page.locator(".now-line", has_text="execute: make release")).to_be_visible()
    watched.check()


def test_a_reply_is_a_document_with_safe_links_and_its_thoughts_are_folded(site):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".markdown")
    reply = page.locator(".bubble", has_text="What I found")
    expect(reply.locator("ol > li")).to_have_count(2)
    expect(reply.locator("ol ul > li")).to_have_text("so make release stops")
    expect(reply.locator("td").nth(1)).to_have_text("1")
    expect(reply.locator("s")).to_have_text("old")
    expect(reply.locator("pre .t-keyword").first).to_have_text("def")
    link = reply.locator("a")
    expect(link).to_have_text("the guide (docs.example.com)")
    expect(link).to_have_attribute("href", "https://docs.example.com/release")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    assert showcase.THOUGHTS.splitlines()[0] not in reply.inner_text()
    reply.locator("summary").click()
    expect(reply.locator(".fold-thoughts .fold-body")).to_contain_text("I change the file")
    assert page.evaluate(FOREIGN) == []
    watched.check()


def test_the_plan_is_one_list_and_its_steps_are_headings(site):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".item")
    headings = ["1 of 3Read the version", "2 of 3Change it everywhere"]
    expect(page.locator(".plan-step")).to_have_text(headings)
    expect(page.locator(".tool-card", has_text="write_todos")).to_have_count(0)
    expect(page.locator(".todos")).to_have_count(1)
    expect(page.locator(".plan summary")).to_contain_text("1 of 3 done")
    page.click(".plan summary")
    expect(page.locator(".todo-in_progress")).to_contain_text("Change it everywhere")
    watched.check()


def test_children_are_cards_that_lead_to_them(site):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".child-card")
    first, second = page.locator(".child-card").nth(0), page.locator(".child-card").nth(1)
    expect(first).to_contain_text("Test the release on Windows")
    expect(first).to_contain_text("not merged")
    expect(first.locator(".child-says")).to_have_text("It works on Windows.")
    expect(second.locator(".state")).to_have_text("running")
    expect(second).to_contain_text("writes NOTES.md")
    expect(page.locator(".now-line", has_text="Write the release notes")).to_have_count(0)
    expect(page.locator(".landing")).to_contain_text("windows.py: this change breaks the tests")
    page.click(".landing summary")
    expect(page.locator(".check-line")).to_contain_text("1 of 1 together: fails")
    second.click()
    expect(page.locator("h1")).to_have_text("Write the release notes")
    watched.check()


def test_system_entries_are_behind_a_switch_and_the_conversation_can_be_searched(site):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".item")
    assert "system" not in shown(page)
    assert shown(page)[:3] == ["task", "step", "said"]
    box = page.get_by_role("switch", name="System entries")
    box.press("Space")
    expect(page.locator(".item-system", has_text="sandbox.ready")).to_be_visible()
    page.locator(".item-system summary", has_text="sandbox.ready").click()
    expect(page.locator(".item-system .json")).to_contain_text('"host": "h1"')
    page.reload()
    expect(page.locator(".item-system").first).to_be_visible()  # the browser remembers it
    page.get_by_role("switch", name="System entries").press("Space")
    expect(page.locator(".item-system")).to_have_count(0)

    page.fill("[aria-label='Find in the conversation']", "git FETCH")
    expect(page.locator(".item")).to_have_count(1)
    page.fill("[aria-label='Find in the conversation']", "nowhere")
    expect(page.locator(".no-match")).to_contain_text("Nothing here fits")
    watched.check()


def test_a_long_conversation_begins_at_its_end_and_shows_earlier_entries_on_demand(site):
    watched = site.visit()
    page = watched.open(f"?job={site.long}", ".item")
    last = page.locator(".item", has_text=f"It is {MANY - 1}.")
    page.wait_for_selector(f".item >> text=It is {MANY - 1}.", state="attached")
    expect(last).to_be_in_viewport()
    expect(page.locator(".item")).to_have_count(400)
    page.locator(".earlier").scroll_into_view_if_needed()
    seen = page.locator(".item").first
    text = seen.locator("p").text_content()
    before = seen.bounding_box()
    page.locator(".earlier").press("Enter")
    expect(page.locator(".item")).to_have_count(800)
    after = page.locator(".item", has_text=text).first.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["y"] - after["y"]) < 120  # it is where it was, but for the line of the button
    page.locator(".earlier").press("Enter")
    expect(page.locator(".earlier")).to_be_hidden()
    expect(page.locator(".item-said")).to_have_count(MANY)
    expect(page.locator(".item-task")).to_have_count(1)

    top = "document.querySelector('.conversation').scrollTop"
    place = page.evaluate(top)
    hands = site.server.hands
    site.server.call(hands.note(site.long, EventType.MODEL_REPLY, text="It goes on."))
    page.wait_for_selector(".item >> text=It goes on.", state="attached")
    assert page.evaluate(top) == place  # who reads stays there
    page.click("button >> text=Latest")
    expect(page.locator(".item", has_text="It goes on.")).to_be_in_viewport()
    site.server.call(hands.note(site.long, EventType.MODEL_REPLY, text="And on."))
    page.wait_for_selector(".item >> text=And on.", state="attached")
    expect(page.locator(".item", has_text="And on.")).to_be_in_viewport()
    watched.check()


def test_a_large_result_is_loaded_when_somebody_asks_for_it(site):
    hands = site.server.hands

    async def write() -> str:
        job_id = await hands.submit("Print much")
        await hands.claim(job_id)
        talk = showcase.Talk(hands, job_id)
        await talk.say("", big=("execute", {"command": "seq 100000"}))
        result = {"status": "success", "exit_code": 0, "output": "the complete output\n" * 9_000}
        part = {"function_response": {"id": "big", "name": "execute", "response": result}}
        blob = await hands.blobs.put(showcase.event_json(part))
        short = {"status": "success", "exit_code": 0, "output": "the complete…"}
        listed = [{"id": "big", "tool": "execute", "result": short}]
        await talk.note(EventType.TOOL_RESULT, results=listed, event_blob=blob)
        return job_id

    watched = site.visit()
    page = watched.open(f"?job={site.server.call(write())}", ".tool-card")
    page.click("button >> text=Show the complete text")
    expect(page.locator(".whole")).to_contain_text("the complete output\nthe complete output")
    watched.check()


@pytest.mark.parametrize(
    ("decision", "said"), [("approve", "Approved"), ("reject", "Rejected"), (None, None)]
)
def test_an_approval_is_answered_where_it_was_asked(site, decision, said):
    hands = site.server.hands
    job_id = site.server.call(hands.submit("Publish it"))
    [claim] = site.server.call(hands.claim(job_id))
    watched = site.visit()
    page = watched.open(f"?job={job_id}")
    site.server.call(hands.ask(claim, "execute", command="twine upload dist/*"))
    card = page.locator(".item .card")
    expect(card).to_contain_text("twine upload dist/*")
    expect(page.locator(".needs-decision")).to_have_text("1 call waits for your decision")
    if decision is None:
        assert find_problems(page) == []
        return
    card.get_by_role("button", name=decision.title()).click()
    expect(page.locator(".item .approval")).to_contain_text(said)
    expect(page.locator(".needs-decision")).to_be_hidden()
    watched.check()


def test_a_job_that_failed_says_why_in_words_and_can_be_continued(site):
    hands = site.server.hands
    why = "The reply was cut at the model's output limit (400 tokens)."

    async def fail() -> str:
        job_id = await hands.submit("Write a long report")
        [claim] = await hands.claim(job_id)
        task = showcase.adk_event({"text": "Write a long report"})
        await hands.note(job_id, EventType.SESSION_EVENT, author="user", **task)
        await hands.note(job_id, EventType.TOOL_CALL, id="c", tool="execute", arguments={})
        error = {"type": "AgentFailed", "message": why}
        await hands.finish(claim, state=JobState.FAILED, error=error)
        return job_id

    watched = site.visit()
    page = watched.open(f"?job={site.server.call(fail())}", ".item")
    expect(page.locator(".ended")).to_contain_text(why)
    expect(page.locator(".tool-card")).to_contain_text("the job ended before it")
    page.click("#tab-result")
    expect(page.locator(".result")).to_contain_text(why)
    assert "AgentFailed" not in page.locator(".detail").inner_text()
    page.click("button >> text=Continue")
    page.fill("dialog textarea", "Shorter, please")
    page.click("dialog button >> text=Continue")
    expect(page.locator("h1")).to_have_text("Shorter, please")
    expect(page.locator(".crumbs")).to_contain_text("continues")
    watched.check()


def test_the_live_end_shows_what_the_record_knows_of_the_request_to_the_model(site):
    hands = site.server.hands
    job_id = site.server.call(hands.submit("Think about it"))
    site.server.call(hands.claim(job_id))
    talk = showcase.Talk(hands, job_id)
    site.server.call(talk.ask_model())
    site.server.call(talk.note(EventType.LOG, stream="text", text="The answer begins"))
    watched = site.visit()

    def known(route: Route) -> None:
        record = route.fetch().json()
        activity = {"kind": "model", "since": record["started_at"], "model": None, "attempt": 2}
        route.fulfill(json=record | {"activity": activity | {"error": "503", "tokens": 1_200}})

    watched.page.route(f"**/v1/jobs/{job_id}", known)
    page = watched.open(f"?job={job_id}", ".now-line")
    expect(page.locator(".now-text")).to_have_text("model gemini-2.5-flash, try 2: 503")
    expect(page.locator(".now-time")).to_contain_text("1.2K tokens")
    expect(page.locator(".writing")).to_have_text("The answer begins")
    watched.check()


RENDER = """async (pieces) => {
  const {markdown} = await import("/static/markdown.js");
  const lost = pieces.filter((piece) => {
    const text = piece.repeat(Math.ceil(50_000 / piece.length));
    return !(markdown(text) instanceof HTMLElement);
  });
  const lines = Array.from({length: 2_000}, (_, depth) => " ".repeat(2 * depth) + "- a").join("\\n");
  const nested = markdown(lines + "> ".repeat(20_000) + "x".repeat(1_000_000));
  let depth = 0;
  for (let one = nested; one; one = one.querySelector(":scope > * , :scope > * > *")) depth += 1;
  return {lost, depth: depth < 100, length: nested.textContent.length > 1_000_000};
}"""


def test_a_hostile_document_of_any_form_is_rendered_before_the_test_times_out(site):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".item")
    found = page.evaluate(RENDER, list(GROWING))
    assert found == {"lost": [], "depth": True, "length": True}
    watched.check()


WORDS = """async ([before, after]) => {
  const {pairOfLines, pieces, sideBySide} = await import("/static/diff_lines.js");
  const lines = pairOfLines(before, after);
  const text = (line) => line && pieces(line, line.text, "a.txt").map((one) =>
    one.isChanged ? `[${one.text}]` : one.text).join("");
  return sideBySide(lines).map((row) => [text(row.left) ?? null, text(row.right) ?? null]);
}"""


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        (["total = item.price"], ["total = item.cost"], [["total = item.[price]", "total = item.[cost]"]]),
        (["a 1.9.0 b"], ["a 2.0.0 b"], [["a [1.9.0] b", "a [2.0.0] b"]]),
        (["for x in xs:"], ["for name in names:"], [["for [x] in [xs]:", "for [name] in [names]:"]]),
        (["keep this"], ["new", "keep that"], [[None, "new"], ["keep [this]", "keep [that]"]]),
        (["one"], ["completely other"], [["one", "completely other"]]),
        (["größe = 1"], ["größer = 1"], [["[größe] = 1", "[größer] = 1"]]),
        (["x" * 3_000], ["x" * 3_001], [["x" * 3_000, "x" * 3_001]]),
    ],
)  # fmt: skip
def test_whole_words_that_changed_are_marked(site, before, after, rows):
    watched = site.visit()
    page = watched.open(f"?job={site.job}", ".item")
    assert page.evaluate(WORDS, [before, after]) == rows
    watched.check()


SHIFTED = """new Promise((resolve) => new PerformanceObserver((list) =>
  resolve(list.getEntries().reduce((sum, one) => sum + one.value, 0))
).observe({type: "layout-shift", buffered: true}))"""
"""How much of the page has moved while it was loaded; 0.1 is what people notice (web.dev/cls)."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("options", [{}, {"viewport": PHONE, "is_mobile": True, "has_touch": True}])
def test_a_conversation_is_readable_and_accessible_everywhere(
    site: Release, scheme: Any, options: dict[str, Any]
) -> None:
    watched = site.visit(color_scheme=scheme, **options)
    page = watched.open(f"?job={site.job}", ".child-card")
    assert page.evaluate(SHIFTED) < 0.05
    page.evaluate("document.querySelectorAll('.tool-line, summary').forEach((one) => one.click())")
    page.get_by_role("switch", name="System entries").click()
    expect(page.locator(".item-system").first).to_be_attached()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= page.evaluate("innerWidth")
    assert page.evaluate(CONTRAST) == []
    assert find_problems(page) == []
    watched.check()
