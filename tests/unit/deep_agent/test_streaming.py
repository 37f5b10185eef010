"""Partial events: words of the model as they come, lines of a command while it runs.

None of them is kept.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types

from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.budget import Budget
from fanout.orchestrator.deep_agent.tools import execute
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted, texts

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "LIVE_OUTPUT_SECONDS", 0.05)


def lines_shown(events: list[Event]) -> list[str]:
    """What was shown of commands' output."""
    return [
        texts(event) for event in events if (event.custom_metadata or {}).get("stream") == "output"
    ]


async def stored(run: Run) -> list[Event]:
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    return session.events


async def test_the_words_of_a_model_pass_every_part_unchanged_and_are_counted_once() -> None:
    said = [
        "I shall look at the plan before I begin to do anything at all.",
        '{"n": 12345678901234567890}',
    ]
    budget = Budget()
    model = scripted([{"text": said[0], "calls": [call("read_todos")]}, {"text": said[1]}])
    run = await Run(model, budget=budget, streaming=True, output_schema=SCHEMA).to_end()

    partial = [event for event in run.events if event.partial]
    assert len(partial) > len(said)
    assert "".join(texts(event) for event in partial) == "".join(said)
    assert run.text == said[1]
    assert run.results == [{"todos": []}]
    assert (budget.usage.model_calls, budget.usage.tool_calls) == (2, 1)
    assert not any(event.partial for event in await stored(run))


async def test_the_newest_lines_of_a_command_are_shown_while_it_runs(tmp_path: Path) -> None:
    command = "for n in 1 2 3 4 5 6; do echo line $n; sleep 0.1; done"
    model = scripted([{"calls": [call("execute", command=command)]}, {"text": "done"}])
    run = await Run(model, backend=LocalShellBackend(tmp_path)).to_end()

    shown = lines_shown(run.events)
    assert len(shown) >= 2
    assert all("line" in lines for lines in shown)
    assert all(len(lines.splitlines()) <= execute.MAX_LIVE_LINES for lines in shown)
    whole = "".join(f"line {n}\n" for n in range(1, 7))
    assert run.results == [
        {"status": "success", "output": whole, "exit_code": 0, "truncated": False}
    ]
    kept = await stored(run)
    assert lines_shown(kept) == []
    assert [event.output for event in kept if event.output is not None] == []


async def test_long_lines_and_progress_bars_are_shown_in_short(tmp_path: Path) -> None:
    command = (
        r"head -c 5000 /dev/zero | tr '\0' x; sleep 0.3; printf '\n10%%\r20%%\r30%%\n'; sleep 0.3"
    )
    model = scripted([{"calls": [call("execute", command=command)]}, {"text": "done"}])
    run = await Run(model, backend=LocalShellBackend(tmp_path)).to_end()

    shown = lines_shown(run.events)
    assert all(len(lines.encode()) <= execute.MAX_LIVE_BYTES + 1 for lines in shown)
    assert shown[-1].splitlines()[-1] == "30%"


async def test_a_command_that_is_soon_done_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "LIVE_OUTPUT_SECONDS", 60)  # a busy machine starts no shell sooner
    run = await Run(
        scripted([{"calls": [call("execute", command="echo quick")]}, {"text": "done"}]),
        backend=LocalShellBackend(tmp_path),
    ).to_end()

    assert lines_shown(run.events) == []
    assert [result["output"] for result in run.results] == ["quick\n"]


async def test_a_command_that_is_silent_shows_nothing(tmp_path: Path) -> None:
    run = await Run(
        scripted([{"calls": [call("execute", command="sleep 0.2")]}, {"text": "done"}]),
        backend=LocalShellBackend(tmp_path),
    ).to_end()

    assert lines_shown(run.events) == []
    assert [result["exit_code"] for result in run.results] == [0]


async def test_commands_of_one_reply_are_shown_beside_each_other(tmp_path: Path) -> None:
    commands = [
        call("execute", command=f"for n in 1 2 3; do echo {who}; sleep 0.1; done") for who in "ab"
    ]
    run = await Run(
        scripted([{"calls": commands}, {"text": "done"}]), backend=LocalShellBackend(tmp_path)
    ).to_end()

    assert {line for lines in lines_shown(run.events) for line in lines.splitlines()} == {"a", "b"}
    assert [result["output"] for result in run.results] == ["a\n" * 3, "b\n" * 3]


async def test_a_command_is_killed_when_nobody_watches_any_more(tmp_path: Path) -> None:
    command = "while true; do echo going on | tee -a beat; sleep 0.05; done"
    model = scripted([{"calls": [call("execute", command=command)]}, {"text": "never"}])
    run = Run(model, backend=LocalShellBackend(tmp_path))
    await run.sessions.create_session(app_name="fanout", user_id="u", session_id="s")
    runner = Runner(app=run.app, session_service=run.sessions)
    stream = runner.run_async(
        user_id="u",
        session_id="s",
        new_message=types.Content(role="user", parts=[types.Part(text="go")]),
    )
    async for event in stream:
        if lines_shown([event]):
            break
    await stream.aclose()

    size = (tmp_path / "beat").stat().st_size
    await asyncio.sleep(0.3)
    assert (tmp_path / "beat").stat().st_size == size
