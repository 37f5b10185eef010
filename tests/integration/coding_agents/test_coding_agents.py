"""Jobs of coding agents: a real worker, a real Redis, and a program that speaks ACP."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_spec
from tests.fixtures import DOCKER_SLOWLY, place_fixture
from tests.integration.coding_agents.program import coding_agent, task
from tests.integration.scripts import DONE, conversation
from tests.integration.worker.approvals import file_of, journal, parked
from tests.integration.worker.children import children_of, delegates
from tests.services import Installation
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

LEAD = "name: {}\ndescription: Delegates.\ninstruction: Do it.\n{}subagents: [coder]\n"
SCHEMA = {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}
AGENTS = {
    "coder": coding_agent("coder", instruction="You are careful."),
    "guarded": coding_agent("guarded", interrupt_on={"execute": True}),
    "forgetful": coding_agent("forgetful", "--no-load"),
    "subscriber": coding_agent("subscriber", "--login"),
    "absent": "name: absent\ndescription: Is not there.\nacp: {command: [no-such-agent, --acp]}\n",
    "lead": LEAD.format("lead", ""),
    "careful": LEAD.format("careful", "interrupt_on: {write_file: true}\n"),
}
ASKS = {
    "ask": {
        "title": "Make it",
        "kind": "execute",
        "input": {"command": "touch made"},
        "then": [{"run": "touch made"}],
    }
}

place = place_fixture(
    conversation(
        "delegate", delegates(task([{"write": {"of-child.txt": "1\n"}}]), agent="coder"), DONE
    ),
    scope="module",
    providers=DOCKER_SLOWLY,
    agents=AGENTS,
    workers=1,
)


async def steps(client: JobClient, job_id: str, kind: EventType) -> list[str]:
    """The texts of replies, or the titles of calls, in order."""
    key = "text" if kind is EventType.MODEL_REPLY else "arguments"
    found = [event.data.get(key) for event in await journal(client, job_id, kind)]
    return [str(one["title"] if isinstance(one, dict) else one).strip() for one in found if one]


def paths(result: JobResult) -> list[str]:
    return sorted(file.path for file in result.files_modified)


def running(marker: str) -> list[str]:
    """The processes of this machine, of containers too, that have a text in their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in file.read_bytes():
                found.append(file.parent.name)
        except OSError:
            continue
    return found


async def test_a_coding_agent_changes_files_and_its_steps_are_in_the_journal(
    place: Installation,
) -> None:
    does = [
        {"plan": [["write it", "in_progress"], ["check it", "pending"]]},
        {"think": "I write."},
        {"say": "I will write a file."},
        {"write": {"notes.txt": "one\n"}},
        {"run": "cat notes.txt"},
        {"unknown": None},
        {"cost": 0.25},
        {"say": "All is written."},
        {"tokens": [100, 20]},
    ]
    async with place.client() as client:
        result = await client.run(make_spec(task(does), agent="coder"))
        assert result.success, result
        assert [(file.path, file.change) for file in result.files_modified] == [
            ("notes.txt", "added")
        ]
        assert await file_of(client, result.job_id, "notes.txt") == "one\n"
        assert result.summary == "refused: -32601 All is written."
        assert (result.usage.tool_calls, result.usage.input_tokens) == (2, 100)
        assert result.usage.cost_usd == 0.25
        calls = await journal(client, result.job_id, EventType.TOOL_CALL)
        assert [(call.data["tool"], call.data["arguments"]) for call in calls] == [
            ("edit", {"title": "Write notes.txt", "path": "notes.txt"}),
            ("execute", {"title": "cat notes.txt", "command": "cat notes.txt"}),
        ]
        results = await journal(client, result.job_id, EventType.TOOL_RESULT)
        assert [_output(event) for event in results] == ["4", "one\n"]
        (todos,) = await journal(client, result.job_id, EventType.TODOS)
        assert todos.data["todos"] == [
            {"content": "write it", "status": "in_progress"},
            {"content": "check it", "status": "pending"},
        ]


def _output(event: JournalEvent) -> Any:
    results: Any = event.data["results"]
    return results[0]["result"]["output"]


@pytest.mark.slow
async def test_cancelling_leaves_no_process_of_an_agent_that_ignores_it(
    place: Installation,
) -> None:
    marker = f"61{place.provider == 'docker':d}98765"
    async with place.client() as client:
        does = [{"start": f"sleep {marker}"}, {"hang": None}]
        job_id = await client.submit(make_spec(task(does), agent="coder"))
        await until_event(client, job_id, EventType.TOOL_CALL)
        assert await eventually(lambda: running(marker))
        await client.cancel(job_id)
        result = await client.wait(job_id)
        assert result.state is JobState.CANCELLED
        assert await eventually(lambda: not running(marker))


@pytest.mark.slow
async def test_an_agent_that_ends_with_its_turn_is_started_again_in_its_session(
    place: Installation,
) -> None:
    async with place.client() as client:
        turns = ([{"write": {"a.txt": "1\n"}}, {"quit": None}], [{"write": {"done": ""}}])
        result = await client.run(make_spec(task(*turns), agent="coder", verify="test -e done"))
        assert result.success, result
        assert await steps(client, result.job_id, EventType.TOOL_CALL) == [
            "Write a.txt",
            "Write done",
        ]


@pytest.mark.slow
async def test_an_answer_is_reworked_in_its_own_session_after_a_failed_verification(
    place: Installation,
) -> None:
    async with place.client() as client:
        turns = (
            [{"write": {"a.txt": "one\n"}}, {"said_prompt": ["test -e done"]}],
            [{"said_prompt": ["exit code 1", "test -e done"]}, {"write": {"done": ""}}],
        )
        spec = make_spec(task(*turns), agent="coder", verify="test -e done")
        result = await client.run(spec)
        assert result.success, result
        assert paths(result) == ["a.txt", "done"]
        assert result.verified is not None
        assert await steps(client, result.job_id, EventType.MODEL_REPLY) == [
            "told: test -e done",
            "told: exit code 1, test -e done",
        ]


@pytest.mark.slow
async def test_a_message_and_a_schema_are_further_prompts_and_a_continuation_is_told(
    place: Installation,
) -> None:
    async with place.client() as client:
        turns = ([{"say": "no JSON"}], [{"say": '{"lines": 3}'}])
        fitted = await client.run(make_spec(task(*turns), agent="coder", output_schema=SCHEMA))
        assert fitted.output == {"lines": 3}, fitted
        wrong = await client.run(
            make_spec(task([{"say": "no"}]), agent="coder", output_schema=SCHEMA)
        )
        assert wrong.error is not None
        assert "output_schema" in wrong.error.message

        waits = [{"write": {"a.txt": "1\n"}}, {"wait_for": "go"}]
        turns = (waits, [{"said_prompt": ["louder"]}])
        job_id = await client.submit(make_spec(task(*turns), agent="coder"))
        await until_event(client, job_id, EventType.TOOL_RESULT)
        await client.send(job_id, "Do it louder.")
        if place.provider == "local":
            (place.folder / "state" / "sandboxes" / "jobs" / job_id / "tree" / "go").touch()
        else:
            await client.cancel(job_id)
        told = await client.wait(job_id)
        assert place.provider == "docker" or told.summary == "told: louder", told

        spec = make_spec("go on", agent="coder", continues=fitted.job_id)
        same = await client.run(spec.model_copy(update={"output_schema": {}}))
        assert same.summary == '{"lines": 3}', same  # the last steps of its script, again

        again = make_spec(task([{"said_prompt": ["<earlier>", '{"lines": 3}']}]), agent="forgetful")
        followed = await client.run(
            again.model_copy(update={"continues": fitted.job_id, "output_schema": None})
        )
        assert "told: <earlier>" in followed.summary, followed


@pytest.mark.slow
async def test_a_person_decides_what_a_guarded_agent_asks_for(place: Installation) -> None:
    async with place.client() as client:
        does = [{"write": {"a.txt": "one\n"}}, ASKS, {"say": "Ended."}]
        approved = await client.submit(make_spec(task(does), agent="guarded"))
        (approval,) = await parked(client, approved)
        assert (approval.tool, approval.arguments["command"]) == ("execute", "touch made")
        assert set(approval.decisions) == {"approve", "reject"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "fanout", "approve", approval.id),
            env=place.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0, printed
        result = await client.wait(approved)
        assert paths(result) == ["a.txt", "made"], result
        said = await steps(client, approved, EventType.MODEL_REPLY)
        assert said == ["Make it: option-allow_once.", "Ended."]
        titles = await steps(client, approved, EventType.TOOL_CALL)
        assert titles.count("Write a.txt") == 1

        rejected = await client.submit(make_spec(task(does), agent="guarded"))
        (approval,) = await parked(client, rejected)
        await client.answer(approval.id, "reject", message="not now")
        result = await client.wait(rejected)
        assert paths(result) == ["a.txt"], result
        assert result.summary == "Make it: option-reject_once. Ended."


@pytest.mark.slow
async def test_what_nobody_guards_is_allowed_once_and_never_always(place: Installation) -> None:
    only_always = {"ask": {**ASKS["ask"], "options": ["allow_always", "reject_always"]}}
    odd = {"ask": {**ASKS["ask"], "options": ["maybe"]}}
    async with place.client() as client:
        for asked, chosen in (
            (ASKS, "option-allow_once"),
            (only_always, "option-reject_always"),
            (odd, "cancelled"),
        ):
            result = await client.run(make_spec(task([asked]), agent="coder"))
            assert f"Make it: {chosen}." in result.summary, result


@pytest.mark.slow
async def test_limits_end_an_agent_with_their_names(place: Installation) -> None:
    async with place.client() as client:
        late = make_spec(
            task([{"write": {"a.txt": "1\n"}}, {"hang": None}]),
            agent="coder",
            limits=Limits(timeout_seconds=15),
        )
        many = make_spec(
            task([{"run": "true"}, {"run": "true"}, {"run": "true"}, {"hang": None}]),
            agent="coder",
            limits=Limits(max_tool_calls=2),
        )
        dear = make_spec(
            task([{"write": {"a.txt": "1\n"}}, {"tokens": [1000, 1]}]),
            agent="coder",
            limits=Limits(max_tokens=1000),
        )
        results = await asyncio.gather(*(client.run(spec) for spec in (late, many, dear)))
        states = [result.state for result in results]
        assert states == [JobState.TIMED_OUT, JobState.FAILED, JobState.FAILED], results
        errors = [result.error.message for result in results if result.error]
        assert "max_tool_calls=2" in errors[1]
        assert "max_tokens=1000" in errors[2]
        assert paths(results[0]) == paths(results[2]) == ["a.txt"]
        assert results[2].usage.input_tokens == 1000


HOSTILE = {
    "garbage": ("coder", [{"garbage": 100_000}], "not ACP"),
    "line": ("coder", [{"flood": "line"}], "more than 16 MiB"),
    "exit": ("coder", [{"exit": [1, "Traceback: it broke\n"]}], "exit code 1"),
    "stderr": ("coder", [{"exit": [1, "Traceback: it broke\n"]}], "it broke"),
    "refusal": ("coder", [{"say": "No."}, {"stop": "refusal"}], "refusal"),
    "max tokens": ("coder", [{"stop": "max_tokens"}], "max_tokens"),
    "odd stop": ("coder", [{"stop": "tired"}], "not one of ACP"),
    "login": ("subscriber", [], "login"),
    "absent": ("absent", [], "no program no-such-agent"),
}


@pytest.mark.slow
async def test_what_an_agent_does_wrong_is_one_sentence_in_its_result(place: Installation) -> None:
    async with place.client() as client:
        specs = [make_spec(task(does), agent=agent) for agent, does, _ in HOSTILE.values()]
        results = await asyncio.gather(*(client.run(spec) for spec in specs))
        for name, result, (_, _, part) in zip(HOSTILE, results, HOSTILE.values(), strict=True):
            assert result.state is JobState.FAILED, (name, result)
            assert result.error is not None
            assert part in result.error.message, (name, result.error.message)
            assert len(result.error.message) < 800, name
            assert result.attempts == 1, name
        flooded = await client.run(make_spec(task([{"flood": "updates"}]), agent="coder"))
        assert flooded.success, flooded
        (text,) = await steps(client, flooded.job_id, EventType.MODEL_REPLY)
        assert text.endswith("(cut)") or len(text) < 10_000


@pytest.mark.slow
async def test_a_coordinator_delegates_to_it_unless_its_own_calls_are_guarded(
    place: Installation,
) -> None:
    async with place.client() as client:
        result = await client.run(make_spec("delegate", agent="lead"))
        assert paths(result) == ["of-child.txt"], result
        careful = await client.submit(make_spec("delegate", agent="careful"))
        await client.wait(careful)
        (child,) = await children_of(client, careful)
        refused = await client.wait(child.id)
        assert refused.error is not None
        assert "write_file without approval" in refused.error.message


@pytest.mark.slow
async def test_a_script_calls_it_like_any_agent_and_lands_what_it_changed(
    place: Installation,
) -> None:
    source = '(await agent(inputs["task"], agent="coder", verify="test -e of-script.txt")).files'
    async with place.client() as client:
        work = task([{"write": {"of-script.txt": "1\n"}}])
        result = await client.run_script(source, inputs={"task": work})
        assert result.output == ["of-script.txt"], result
        assert paths(result) == ["of-script.txt"]
