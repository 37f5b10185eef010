"""The hook runs a person's own command; what it is told of a job cannot change it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.configuration.setting_errors import misspelt
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.server.notifications.hook import DESKTOP, Hook, desktop_command
from fanout.orchestrator.server.notifications.messages import HookEvent
from tests.waits import eventually

HOSTILE = HookEvent(
    event="finished",
    job_id="$(touch owned)`touch owned`",
    root_id="--help; touch owned",
    agent="<b>a</b>\nb",
    state="failed",
    reason='"; touch owned; "',
)


def test_the_variables_hold_nothing_that_a_shell_or_a_desktop_understands() -> None:
    variables = HOSTILE.variables()

    assert variables["FANOUT_JOB_ID"] == "__touch_owned__touch_owned_"
    assert variables["FANOUT_JOB_REASON"] == "___touch_owned___"
    assert variables["FANOUT_JOB_AGENT"] == "_b_a__b__b"
    assert misspelt(Settings, variables) == []  # a hook may call `fanout show "$FANOUT_JOB_ID"`


async def test_a_command_that_evaluates_a_variable_runs_nothing_of_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"cd {tmp_path}; eval echo $FANOUT_JOB_ID $FANOUT_JOB_ROOT_ID > {out}"

    assert await Hook(command).run(HOSTILE)
    assert await Hook(f'test "$(ls {tmp_path})" = out').run(HOSTILE)


async def test_a_hook_is_for_bash_and_no_variable_of_this_process_changes_how_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "startup").write_text("exit 1\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "startup"))

    assert await Hook("[[ a == a ]] && diff <(echo {a,b}) <(echo a b)").run(HOSTILE)


async def test_a_hook_that_fails_or_never_ends_says_so() -> None:
    assert not await Hook("exit 3").run(HOSTILE)
    assert not await Hook("/nowhere/command").run(HOSTILE)
    assert not await Hook("sleep 600", seconds=0.05).run(HOSTILE)


async def test_a_hook_ends_with_what_it_has_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = f"sleep 600 & echo $! > {started}.new; mv {started}.new {started}; wait"
    task = asyncio.create_task(Hook(command).run(HOSTILE))
    await eventually(lambda: asyncio.to_thread(started.exists))
    child = int(await asyncio.to_thread(started.read_text))

    await cancel_and_wait(task)

    runs = f"grep -qs 'State:.[^Z]' /proc/{child}/status"
    assert await Hook(f"while {runs}; do sleep 0.01; done").run(HOSTILE)


async def test_keys_of_models_are_not_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "canary")
    monkeypatch.setenv("DISPLAY", ":7")

    assert await Hook('test -z "$GOOGLE_API_KEY" -a "$DISPLAY" = :7').run(HOSTILE)


def test_a_desktop_notification_is_sent_by_the_program_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asyncio.run(Hook(DESKTOP).run(HOSTILE)) is False
    for name in ("osascript", "notify-send"):  # the second one is preferred
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        made = desktop_command(HookEvent("approval", "j1", "j1", "writer", "waiting").variables())
        assert made is not None
        assert made[0] == name
        assert made[-2:] == ("fanout: writer", "j1 waits for your approval")
    assert asyncio.run(Hook(DESKTOP).run(HOSTILE))
