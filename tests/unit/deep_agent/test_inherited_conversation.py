"""Sub-agents in this process that begin with their parent's conversation, because a task asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.models.llm_request import LlmRequest

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.long_conversations import GOAL, config, look, resilient, watched
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import recorder
from tests.unit.deep_agent.test_forked_context import Listener, shown
from tests.unit.deep_agent.test_subagents import Guarded, asks, worker

PERSONS_GOAL = "the goal of the person"
INHERITS: dict[str, Any] = {"inherit": "conversation"}


def talker(*made: dict[str, Any]) -> Any:
    first = {"text": "I look first.", "calls": [call("ls", path="/")]}
    return recorder("parent", [first, calls(*made), says("done")])


def messages(request: LlmRequest) -> list[str]:
    return [content.model_dump_json(exclude_none=True) for content in request.contents]


async def test_its_request_begins_with_its_parents_messages_and_ends_with_its_task() -> None:
    child = worker(calls(call("ls", path="/")), says("found it"))
    other = worker(says("o"), name="other")
    model = talker(asks("find it", context="below /a", **INHERITS), asks("else", "other"))
    run = await Run(model, subagents=[child, other]).to_end(PERSONS_GOAL)
    first, second = map(messages, child["model"].requests)
    parents = messages(model.requests[1])
    assert first[: len(parents)] == parents
    assert second[: len(first)] == first
    reply, answers, task = child["model"].requests[0].contents[len(parents) :]
    assert [part.function_call.name for part in reply.parts] == ["task", "task"]
    assert all("made this call" in str(part.function_response) for part in answers.parts)
    assert "find it\n\n<context>\nbelow /a" in task.parts[-1].text
    assert run.results[1]["summary"] == "found it"
    assert run.results[1]["usage"]["model_calls"] == 2
    assert PERSONS_GOAL not in shown(other["model"].requests[0])
    assert "made this call" not in str(model.requests[2].contents)


async def test_children_of_one_reply_begin_alike() -> None:
    first, second = worker(says("x"), name="first"), worker(says("y"), name="second")
    made = call("tasks", tasks=[
        {"description": name, "subagent_type": name, **INHERITS} for name in ("first", "second")
    ])  # fmt: skip
    await Run(talker(made), subagents=[first, second]).to_end(PERSONS_GOAL)
    (one,), (two,) = first["model"].requests, second["model"].requests
    assert messages(one)[:-1] == messages(two)[:-1]
    assert messages(one)[-1] != messages(two)[-1]


async def test_the_parents_plan_stays_its_own() -> None:
    plan = call("write_todos", todos=[{"content": "secret plan", "status": "in_progress"}])
    child = worker(calls(call("read_todos")), says("x"))
    model = recorder("parent", [calls(plan), calls(asks(**INHERITS)), says("done")])
    await Run(model, subagents=[child]).to_end()
    answer = child["model"].requests[1].contents[-1].parts[0].function_response.response
    assert answer == {"todos": []}


async def test_after_a_question_it_goes_on_with_the_same_conversation(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    guarded = Guarded(tmp_path, "a")
    child = worker(calls(call("delete_file", file_path="/workspace/a")), says("cleaned"))
    model = talker(asks(**INHERITS))
    guarded.run = Run(
        model,
        subagents=[child],
        backend=DirectoryBackend(tmp_path),
        interrupt_on={"delete_file": True},
    )
    await guarded.run.to_end(PERSONS_GOAL)
    await guarded.answer({"decision": "approve"})
    assert not (tmp_path / "a").exists()
    first, last = map(messages, child["model"].requests)
    assert last[: len(first)] == first
    assert guarded.run.results[-1]["summary"] == "cleaned"


async def test_of_a_long_conversation_it_has_what_the_model_saw() -> None:
    child = worker(says("x"))
    child["model"] = listener = Listener(model="listener")
    looks = [{"calls": [call("look", number=number)]} for number in range(20)]
    model = watched([*looks, {"calls": [asks(**INHERITS)]}, {"text": "done"}])
    await Run(resilient(model), subagents=[child], tools=[look], summarization=config()).to_end(
        GOAL
    )
    text = shown(listener.requests[0])
    assert "Some modules are renamed" in text
    assert "result 19" in text
    assert "result 0 " not in text


async def test_what_is_not_one_agent_with_a_model_is_refused() -> None:
    node = BaseAgent(name="steps", description="Works in steps.")
    model = talker(asks("go", "steps", **INHERITS))
    run = await Run(model, subagents=[node]).to_end()
    assert "steps takes no conversation" in run.results[1]["error"]
