"""What all commands have in common: one name for an id in JSON, short ids, and the last run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from docs.generate.command_line import commands, context
from fanout.orchestrator.cli.terminal.exit_codes import ExitCode
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.landing.runs import Landing, Runs
from tests.integration.cli.conftest import Fanout, StandIn

pytestmark = [pytest.mark.redis, pytest.mark.blocks_loop("the commands are waited for in the loop")]

LISTS = {"jobs", "runs", "keys", "approvals", "failed_jobs"}
"""The lists of things that have ids."""
STREAMS = {"logs", "watch"}
"""Each line is a document."""
WITHOUT_IDS = {
    *("cost", "agents new", "agents add", "config", "doctor", "images ls", "images check", "clean"),
    *("environment ls", "up", "down", "example", "keys audit", "script check", "script ls"),
}
"""Their documents are about no job, approval or key."""
ELSEWHERE = {
    "demo": "test_demo.py",
    "approve": "test_approvals.py",
    "reject": "test_approvals.py",
    "fork": "test_continue.py",
}
"""They need a worker, a conversation, or a job that waits for a person."""


def with_json() -> set[str]:
    return {
        name
        for name, command in commands()
        if any("--json" in one.opts for one in context(name, command).command.params)
    }


def without_id(document: Any, path: str = "") -> list[str]:
    """Return where a list of things has one without an id of its own."""
    if isinstance(document, list):
        return [found for one in document for found in without_id(one, path)]
    if not isinstance(document, dict):
        return []
    found = [
        f"{path}.{name}"
        for name, value in document.items()
        if name in LISTS and isinstance(value, list)
        for one in value
        if not (isinstance(one, dict) and one.get("id"))
    ]
    return found + [
        one for name, value in document.items() for one in without_id(value, f"{path}.{name}")
    ]


async def test_every_command_prints_one_json_object_and_calls_an_id_id(
    fanout: Fanout, stand_in: StandIn
) -> None:
    done, late = (fanout("submit", text).out.strip() for text in ("done", "late"))
    await stand_in.finish(done)
    await stand_in.finish(late, JobState.TIMED_OUT)
    queued = fanout("submit", "queued").out.strip()
    about_one = {
        "submit": ["x"],
        "run": ["x", "--detach", "--yes", "--sandbox", "local"],
        "attach": [done],
        "show": [done],
        "result": [done],
        "diff": [done],
        "apply": [done],
        "retry": [done],
        "tell": [queued, "hello"],
        "keys create": ["ci", "--scope", "read"],
        "keys revoke": ["ci"],
    }
    about_many = {
        "ps": ["--all"],
        "tree": [done],
        "wait": [done, late],
        "cancel": [done],
        "history": [],
        "approvals": [],
        "keys ls": [],
        "top": [],
    }

    assert with_json() == {*about_one, *about_many, *STREAMS, *WITHOUT_IDS, *ELSEWHERE}
    for name, arguments in {**about_one, **about_many}.items():
        ended = await asyncio.to_thread(fanout, *name.split(), *arguments, "--json")
        assert ended.out, (name, ended.err)
        document = ended.json
        assert isinstance(document, dict), name
        assert name not in about_one or document.get("id"), name
        assert without_id(document) == [], name
        assert name not in about_many or LISTS & set(document), name


async def test_the_last_run_of_a_folder_is_meant_where_no_id_is_given(
    fanout: Fanout, stand_in: StandIn
) -> None:
    refused = fanout("tree")
    older, newer, other = (fanout("submit", text).out.strip() for text in ("a", "b", "c"))
    for job_id in (older, newer, other):
        await stand_in.finish(job_id, summary=f"It was {job_id}.")
    inner = fanout.folder / "src"
    inner.mkdir()
    runs = Runs(fanout.folder / "state")
    for job_id, folder in ((older, "."), (newer, "."), (other, "elsewhere")):
        runs.remember(job_id, Landing(workspace=(fanout.folder / folder).resolve()))

    below = Fanout(inner, fanout.env)
    for command in ("show", "result", "tree", "logs", "wait", "attach", "diff"):
        ended = await asyncio.to_thread(below, command)
        assert ended.code == 0, ended.err
        assert ended.err.startswith(f"The last run of this folder: {newer[-8:]}\n"), command
    assert refused.code == ExitCode.USAGE
    assert "No run was started in" in refused.err


async def test_apply_names_the_last_run_and_merges_it_only_if_a_person_says_so(
    fanout: Fanout, stand_in: StandIn
) -> None:
    job_id = fanout("submit", "a").out.strip()
    await stand_in.finish(job_id)
    Runs(fanout.folder / "state").remember(job_id, Landing(workspace=fanout.folder.resolve()))

    refused = await asyncio.to_thread(fanout, "apply")

    assert refused.code == ExitCode.USAGE
    assert refused.err.endswith(f"is {job_id[-8:]}: fanout apply {job_id[-8:]}\n")
