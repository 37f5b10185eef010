"""Where a conversation may be cut, what asks for a summary, and what a summary must not break."""

import time
from itertools import pairwise
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.platform.time import reset_time_provider, set_time_provider
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent.approval import answers_message, pending_approvals
from fanout.orchestrator.deep_agent.context.compaction import AgentConversation
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig
from fanout.orchestrator.deep_agent.failures import ModelContextExceeded
from tests.integration.scripts import call
from tests.unit.deep_agent.long_conversations import (
    GOAL,
    config,
    look,
    pairs_are_intact,
    resilient,
    said,
    session_of,
    steps,
    summaries,
    watched,
)
from tests.unit.deep_agent.running import Run

TOO_LONG = {"error": {"status": 413, "times": 99}}
ROOMY = config(window_tokens=100_000, keep=("messages", 4))


async def test_a_request_that_is_too_long_for_the_service_is_survived_by_a_summary() -> None:
    model = watched([*steps(8)[:-1], TOO_LONG, *steps(3)])
    run = await Run(resilient(model), tools=[look], summarization=ROOMY).to_end(GOAL)
    assert run.text == "done"
    before, after = model.turns[8], model.turns[9]
    assert len(before) == 17
    assert len(after) <= 6, "the summary, less than usual of the newest, and what happened"
    assert said(after[0]).startswith(GOAL)
    assert "longer than the model takes" in str(after[-1])
    assert pairs_are_intact(after)
    assert len(summaries(await session_of(run))) == 1


async def test_what_is_too_long_even_then_ends_the_run_as_that() -> None:
    run = Run(
        resilient(watched([*steps(8)[:-1], TOO_LONG, TOO_LONG])), tools=[look], summarization=ROOMY
    )
    with pytest.raises(ModelContextExceeded):
        await run.to_end(GOAL)
    assert len(summaries(await session_of(run))) == 1


async def test_a_first_message_that_is_too_long_ends_the_run() -> None:
    with pytest.raises(ModelContextExceeded):
        await Run(resilient(watched([TOO_LONG, TOO_LONG])), summarization=ROOMY).to_end(GOAL)


async def test_a_later_request_that_is_too_long_is_survived_again() -> None:
    model = watched([*steps(8)[:-1], TOO_LONG, *steps(8)[:-1], TOO_LONG, {"text": "done"}])
    run = await Run(resilient(model), tools=[look], summarization=ROOMY).to_end(GOAL)
    assert run.text == "done"
    assert len(summaries(await session_of(run))) == 2


async def test_an_agent_has_its_conversation_summed_up_when_half_of_the_trigger_is_reached() -> (
    None
):
    compact = {"calls": [call("compact_conversation")]}
    model = watched([compact, *steps(7)[:-1], compact, {"text": "done"}])
    run = await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    refused, accepted = run.results[0], run.results[-1]
    assert refused["status"] == "error"
    assert "of the 3400 tokens at which" in refused["error"]
    assert accepted["status"] == "success"
    assert len(summaries(await session_of(run))) == 1
    assert len(model.turns[-1]) < len(model.turns[-2])


async def test_nothing_is_summed_up_when_all_messages_are_kept_anyway() -> None:
    many = config(window_tokens=3_000, keep=("messages", 100))
    model = watched([*steps(8)[:-1], {"calls": [call("compact_conversation")]}, {"text": "done"}])
    run = await Run(resilient(model), tools=[look], summarization=many).to_end(GOAL)
    assert "nothing to sum up" in run.results[-1]["error"]
    assert summaries(await session_of(run)) == []


async def test_a_conversation_that_a_summary_cannot_shorten_is_not_summed_up_every_turn() -> None:
    crowded = config(window_tokens=1_500, keep=("messages", 8))
    run = await Run(resilient(watched(steps(40))), tools=[look], summarization=crowded).to_end(GOAL)
    assert run.text == "done"
    assert 0 < len(summaries(await session_of(run))) <= 42


async def test_parallel_calls_and_their_results_stay_together() -> None:
    batch = {"calls": [call("look", number=number) for number in range(5)]}
    other = {"calls": [call("look", number=number) for number in range(5, 9)]}
    model = watched([batch, other] * 10 + [{"text": "done"}])
    for kept in (1, 2, 3):
        tight = config(keep=("messages", kept))
        await Run(resilient(model), tools=[look], summarization=tight).to_end(GOAL)
    assert all(pairs_are_intact(asked) for asked in model.turns)


async def test_calls_that_a_person_approved_stay_with_their_results() -> None:
    pressed: list[int] = []

    async def press(number: int) -> dict[str, Any]:
        """Press a button."""
        pressed.append(number)
        return {"status": "success", "text": "p" * 1_000}

    replies = [
        step
        for number in range(6)
        for step in (*steps(4)[:-1], {"calls": [call("press", number=number)]})
    ]
    model = watched([*replies, {"text": "done"}])
    tight = config(keep=("messages", 1))
    run = Run(
        resilient(model), tools=[look, press], summarization=tight, interrupt_on={"press": True}
    )
    await run.to_end(GOAL)
    for _ in range(6):
        pending = pending_approvals((await session_of(run)).events)
        message = answers_message(
            [(asked, ApprovalAnswer(decision="approve")) for asked in pending]
        )
        runner = Runner(app=run.app, session_service=run.sessions)
        async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
            run.events.append(event)

    assert pressed == list(range(6))
    assert any(said(event.content) == "done" for event in run.events if event.content)
    assert len(summaries(await session_of(run))) >= 2
    assert all(pairs_are_intact(asked) for asked in model.turns)


def test_what_waits_for_a_person_is_never_cut_off() -> None:
    asks = EventActions(requested_tool_confirmations={"b": ToolConfirmation(hint="?")})
    messages = [
        Event(author="user", content=types.Content(role="user", parts=[types.Part(text=GOAL)])),
        *_pair("a"),
        *_pair("b", asks),
        *_pair("c"),
    ]
    conversation = AgentConversation(messages=messages, summary=None, shown_from=0)
    cuts = [conversation.safe_cut(wanted) for wanted in range(len(messages) + 1)]
    assert cuts == [0, 1, 1, 3, 3, 3, 3, 3]


async def test_a_clock_that_is_set_back_hides_no_message() -> None:
    clock = {"behind": 0.0}

    async def set_clock_back() -> dict[str, Any]:
        """Set the clock back."""
        clock["behind"] += 3600
        return {"status": "success"}

    set_time_provider(lambda: time.time() - clock["behind"])
    back = {"calls": [call("set_clock_back")]}
    model = watched([*steps(20)[:-1], back, *steps(20)[:-1], back, *steps(20)])
    try:
        tools = [look, set_clock_back]
        run = await Run(resilient(model), tools=tools, summarization=config()).to_end(GOAL)
    finally:
        reset_time_provider()
    assert run.text == "done"
    assert len(summaries(await session_of(run))) >= 4
    for before, after in pairwise(model.turns):
        assert pairs_are_intact(after)
        assert len(after) == len(before) + 2 or len(after) < len(before), "a message is not shown"


async def test_the_users_first_and_latest_message_both_stand_above_a_summary() -> None:
    model = watched([{"text": "What next?"}, *steps(30)])
    run = await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    await run.go_on("Now look at thirty things, one by one.")
    text = said(model.turns[-1][0])
    assert text.startswith(GOAL)
    assert "Now look at thirty things, one by one." in text


async def test_a_very_long_task_is_repeated_with_its_beginning_and_its_end() -> None:
    task = f"{GOAL} {'details ' * 500} And report."
    model = watched(steps(20))
    await Run(resilient(model), tools=[look], summarization=config()).to_end(task)
    text = said(model.turns[-1][0])
    assert text.startswith(GOAL)
    assert "And report." in text
    assert "characters are left out here" in text


async def test_long_arguments_of_old_calls_are_shown_shortened_and_the_same_in_every_later_request() -> (
    None
):
    def write(number: int) -> dict[str, Any]:
        return {
            "calls": [call("write_file", file_path=f"/{number}.txt", content=f"{number} " * 1_500)]
        }

    model = watched([*(write(number) for number in range(12)), {"text": "done"}])
    roomy = config(window_tokens=12_000, keep=("messages", 4))
    run = await Run(resilient(model), summarization=roomy).to_end(GOAL)
    contents = [[_argument(content) for content in asked] for asked in model.turns]
    shortened = [sum("shown shortened" in text for text in asked) for asked in contents]
    assert shortened[0] == 0
    assert max(shortened) >= 3
    changes = sum(one != other for one, other in pairwise(shortened))
    assert changes <= 1 + 2 * len(summaries(await session_of(run))), (
        "decided once between two summaries"
    )
    written = [event for event in (await session_of(run)).events if event.get_function_calls()]
    assert all(len(_argument(event.content)) > 2_500 for event in written), (
        "the session keeps all of it"
    )


async def test_sessions_in_a_database_give_the_same_conversation(tmp_path: Any) -> None:
    model = watched(steps(30))
    run = Run(resilient(model), tools=[look], summarization=config())
    for text in (GOAL, "And again?"):  # a new service each time: all that it knows it has read
        sessions = SqliteSessionService(str(tmp_path / "sessions.db"))
        if text == GOAL:
            await sessions.create_session(app_name="fanout", user_id="u", session_id="s")
            model.script = watched(steps(30)).script
        else:
            model.script = watched([*steps(30), {"text": "again"}]).script
        runner = Runner(app=run.app, session_service=sessions)
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
            pass
    assert said(model.turns[-1][0]).startswith(GOAL)
    assert said(model.turns[-1][-1]) == "And again?"
    session: Session | None = await sessions.get_session(
        app_name="fanout", user_id="u", session_id="s"
    )
    assert session is not None
    assert said(_last(session)) == "again"
    assert all(pairs_are_intact(asked) for asked in model.turns)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trigger": ("fraction", 1.5)}, "fraction 1.5"),
        ({"keep": ("tokens", 0)}, "tokens 0"),
        ({"trigger": ("lines", 5)}, "not by lines"),
        ({"trigger": ("messages", 10), "keep": ("messages", 10)}, "less than trigger"),
        ({"window_tokens": 0}, "above 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SummarizationConfig(**wrong)


def _pair(call_id: str, actions: EventActions | None = None) -> list[Event]:
    """A call and its result, in the run that is under way."""
    made = types.FunctionCall(id=call_id, name="look", args={})
    answer = types.FunctionResponse(id=call_id, name="look", response={})
    contents = [
        types.Content(role="model", parts=[types.Part(function_call=made)]),
        types.Content(role="user", parts=[types.Part(function_response=answer)]),
    ]
    extra = [EventActions(), actions or EventActions()]
    return [
        Event(author="deep_agent", invocation_id="i", content=content, actions=action)
        for content, action in zip(contents, extra, strict=True)
    ]


def _argument(content: types.Content | None) -> str:
    calls = [
        part.function_call
        for part in (content.parts if content else None) or []
        if part.function_call
    ]
    return "".join(str((made.args or {}).get("content", "")) for made in calls)


def _last(session: Session) -> types.Content:
    events: list[Event] = [event for event in session.events if event.content]
    assert events[-1].content is not None
    return events[-1].content
