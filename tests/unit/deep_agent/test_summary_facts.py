"""What a summary keeps without help of a model: decisions, changed files, and its statistics."""

import os
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types

from fanout.orchestrator.deep_agent import (
    DirectoryBackend,
    LocalShellBackend,
    OverlayBackend,
    context_stats,
    context_summary,
)
from fanout.orchestrator.deep_agent.backends.state import StateBackend
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig
from fanout.orchestrator.deep_agent.context.summarizer import (
    MAX_DECISIONS,
    changed_files,
    key_decisions,
)
from tests.integration.scripts import call
from tests.unit.deep_agent.long_conversations import (
    GOAL,
    config,
    look,
    resilient,
    said,
    session_of,
    steps,
    summaries,
    watched,
)
from tests.unit.deep_agent.running import Run, make_state

DECIDED = "I decided to keep Bread as an alias, because plugins import it."


def reply(text: str) -> Event:
    return Event(author="a", content=types.Content(role="model", parts=[types.Part(text=text)]))


def test_decisions_are_found_in_replies_and_not_in_results() -> None:
    asked = types.Content(role="user", parts=[types.Part(text="We decided on blue.")])
    events = [
        Event(author="user", content=asked),
        reply(f"I looked around. {DECIDED} Then I went on.\nGoing with SQLite rather than files."),
    ]
    assert key_decisions(events) == (DECIDED, "Going with SQLite rather than files.")


def test_decisions_of_the_earlier_summary_are_kept_and_the_number_is_bounded() -> None:
    earlier = (
        "## Done so far\nx\n## Decisions and their reasons\n- Keep tabs: asked for\n## Next\ny"
    )
    assert key_decisions([], earlier) == ("Keep tabs: asked for",)
    assert key_decisions([], earlier.replace("Keep tabs: asked for", "None.")) == ()
    many = [reply(f"I decided on number {number}.") for number in range(30)]
    found = key_decisions(many, earlier)
    assert len(found) == MAX_DECISIONS
    assert found[-1] == "I decided on number 29."


@pytest.mark.parametrize("summary", [{"raise": "broken"}, {"text": ""}])
async def test_decisions_and_changed_files_survive_a_failed_summarizer(
    summary: dict[str, Any],
) -> None:
    replies = [
        {"text": DECIDED, "calls": [call("write_file", file_path="/a.py", content="1")]},
        *steps(60),
    ]
    model = watched(replies, summary=summary)
    run = await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    assert run.text == "done"
    made = summaries(await session_of(run))
    assert len(made) > 2
    last = said(model.turns[-1][0])
    assert f"- {DECIDED}" in last, "it is in every summary after the one that replaced it"
    assert "- /a.py (created)" in last
    assert [found.by_model for event in made if (found := context_summary(event))] == [False] * len(
        made
    )


async def test_each_summary_tells_what_it_replaced_and_the_session_sums_it_up() -> None:
    model = watched(steps(60))
    run = await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    session = await session_of(run)
    first = context_summary(summaries(session)[0])
    assert first is not None
    assert first.by_model
    assert first.messages_summarized > 5
    assert first.original_token_count > 4 * first.summarized_token_count > 0
    stats = context_stats(session.events)
    assert 0 < stats.message_count < len(session.events) - stats.messages_summarized
    assert first.summarized_token_count < stats.total_tokens < first.original_token_count * 2
    assert stats.threshold is not None
    assert stats.total_tokens < stats.threshold < first.original_token_count * 2
    assert stats.summary_count == len(summaries(session))
    assert stats.tokens_saved == stats.original_token_count - stats.summarized_token_count > 0


def test_a_conversation_that_was_never_summed_up_has_statistics_too() -> None:
    stats = context_stats([reply("x" * 400), reply("y" * 400)])
    assert (stats.message_count, stats.summary_count, stats.threshold) == (2, 0, None)
    assert stats.total_tokens >= 200


async def test_the_configuration_of_the_plan_is_taken_as_written() -> None:
    written = SummarizationConfig(
        model="gemini-2.5-flash",
        trigger=("fraction", 0.85),
        keep=("messages", 6),
        history_path_prefix="/conversation_history",
    )
    assert written == SummarizationConfig("gemini-2.5-flash", ("fraction", 0.85), ("messages", 6))


@pytest.mark.parametrize("prefix", ["", "/", "history", "/a/../b", "//a", "/large_tool_results/x"])
def test_a_prefix_that_is_no_folder_of_its_own_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="history_path_prefix"):
        SummarizationConfig(history_path_prefix=prefix)


@pytest.mark.parametrize("on_disk", [False, True])
async def test_the_history_is_read_at_the_prefix(tmp_path: Path, on_disk: bool) -> None:
    at = config(history_path_prefix="/notes/past/")
    look_back = {"calls": [call("grep", pattern="result 0 x", path="/notes/past")]}
    model = watched([*steps(30)[:-1], look_back, {"text": "done"}])
    backend = DirectoryBackend(tmp_path) if on_disk else None
    run = await Run(resilient(model), tools=[look], summarization=at, backend=backend).to_end(GOAL)
    assert "/notes/past/s/0001.md" in str(run.results[-1])
    assert next(os.scandir(tmp_path), None) is None, "it is kept in the session"


async def test_what_the_shell_changed_is_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    os.utime(tmp_path / "old.txt", (1, 1))
    replies = [
        {"calls": [call("write_file", file_path=f"{tmp_path}/gone.txt", content="1")]},
        {"calls": [call("execute", command="rm gone.txt; mkdir -p src; echo 1 > src/made.py")]},
        *steps(30),
    ]
    model = watched(replies)
    backend = LocalShellBackend(tmp_path)
    await Run(resilient(model), tools=[look], summarization=config(), backend=backend).to_end(GOAL)
    text = said(model.turns[-1][0])
    assert "/src/made.py (changed)" in text
    assert "/gone.txt (deleted)" in text
    assert "old.txt" not in text


async def test_an_overlay_knows_its_changes_exactly() -> None:
    overlay = OverlayBackend(StateBackend(make_state({"/a": b"1", "/b": b"1", "/c": b"1"})))
    await overlay.write_bytes("/b", b"2")
    await overlay.delete("/c")
    await overlay.write_bytes("/d", b"1")
    expected = {"/b": "modified", "/c": "deleted", "/d": "added"}
    assert await changed_files(overlay, []) == expected


async def test_files_of_the_harness_are_no_changed_files() -> None:
    own = {"/a": b"1", "/notes/past.md": b"1", "/large_tool_results_of_mine": b"1"}
    kept = {"/notes/past/s/0001.md": b"1", "/large_tool_results/x": b"1"}
    backend = StateBackend(make_state({}))
    for path in (*own, *kept):
        await backend.write_bytes(path, b"1")
    changed = await changed_files(backend, [], history="/notes/past")
    assert changed == dict.fromkeys(own, "changed")
    overlay = OverlayBackend(StateBackend(make_state({})))
    for path in (*own, *kept):
        await overlay.write_bytes(path, b"2")
    assert await changed_files(overlay, [], history="/notes/past") == dict.fromkeys(own, "added")


async def test_a_backend_that_fails_costs_only_its_part_of_the_list() -> None:
    class Broken(OverlayBackend):
        async def changed_files(self) -> dict[str, str]:
            raise RuntimeError("gone")

    assert await changed_files(Broken(StateBackend(make_state({}))), []) == {}
