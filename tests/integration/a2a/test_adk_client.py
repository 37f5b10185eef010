"""ADK's `RemoteA2aAgent` as the client, a confirmation included."""

from __future__ import annotations

import httpx
import pytest
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.genai import types

from tests.integration.a2a.conftest import Server, headers

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]
pytestmark += [pytest.mark.filterwarnings("ignore::UserWarning")]


async def said(runner: InMemoryRunner, session_id: str, *parts: types.Part) -> list[Event]:
    content = types.Content(role="user", parts=list(parts))
    run = runner.run_async(user_id="ann", session_id=session_id, new_message=content)
    return [event async for event in run]


def texts(events: list[Event]) -> str:
    parts = [part for one in events if one.content for part in one.content.parts or []]
    return "\n".join(part.text for part in parts if part.text and not part.thought)


async def test_a_remote_agent_of_adk_gets_the_answer_goes_on_and_confirms_a_call(
    server: Server,
) -> None:
    card = f"{server.url}/a2a/agents/{{}}/.well-known/agent-card.json"
    async with httpx.AsyncClient(headers=headers("ann"), timeout=60) as http:
        writer = RemoteA2aAgent("writer", card.format("general-purpose"), httpx_client=http)
        runner = InMemoryRunner(writer, app_name="test")
        session = await runner.session_service.create_session(app_name="test", user_id="ann")
        first = await said(runner, session.id, types.Part(text="write a note"))
        assert "Written." in texts(first)
        second = await said(runner, session.id, types.Part(text="and then read it"))
        assert "Done as asked." in texts(second)
        contexts = {
            event.custom_metadata["a2a:context_id"]
            for event in (*first, *second)
            if event.custom_metadata and "a2a:context_id" in event.custom_metadata
        }
        assert len(contexts) == 1

        guarded = RemoteA2aAgent("guarded", card.format("guarded"), httpx_client=http)
        runner = InMemoryRunner(guarded, app_name="test")
        session = await runner.session_service.create_session(app_name="test", user_id="ann")
        asked = await said(runner, session.id, types.Part(text="guarded task"))
        call = next(
            one
            for event in asked
            for one in event.get_function_calls()
            if one.name == "adk_request_confirmation"
        )
        assert call.id in set().union(*(one.long_running_tool_ids or set() for one in asked))
        answer = types.FunctionResponse(id=call.id, name=call.name, response={"confirmed": True})
        assert "Done as asked." in texts(
            await said(runner, session.id, types.Part(function_response=answer))
        )
