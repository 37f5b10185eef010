"""Warm-up: loads what the first job needs, before the worker runs it.

ADK and the clients of models load many modules when they are first used, on the event loop: half a
second in which no lease is renewed and no other job runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import structlog
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout.orchestrator.deep_agent import (
    Budget,
    Conversation,
    Script,
    ScriptedCall,
    ScriptedModel,
    ScriptedReply,
    create_deep_agent,
    create_deep_app,
    preload_client,
)

log = structlog.get_logger(__name__)

_SCRIPT = Script(
    conversations=(
        Conversation(
            replies=(
                ScriptedReply(calls=(ScriptedCall(tool="ls", args={"path": "/"}),)),
                ScriptedReply(text="warm"),
            )
        ),
    )
)


async def warm_up(models: Iterable[str]) -> None:
    """Create the models' clients, and run an agent with a scripted model; no model is called.

    This blocks the loop, so it has to end before the worker runs jobs. A failure is only
    logged: the jobs that it concerns report it again.

    Args:
        models: Names of models.
    """
    for model in models:
        await preload_client(model)
    await _rehearse()


def load_agent_libraries() -> None:
    """Load what every agent needs, in a process without an event loop."""
    asyncio.run(_rehearse())


async def _rehearse() -> None:
    try:
        await _run_agent()
    except Exception as error:  # noqa: BLE001 - the warm-up is optional
        log.warning("warm-up failed", error=type(error).__name__)


async def _run_agent() -> None:
    agent = create_deep_agent(
        ScriptedModel(model="scripted:warm_up", script=_SCRIPT, agent_name="warm_up"),
        name="warm_up",
        delegation=None,
    )
    runner = InMemoryRunner(app=create_deep_app(agent, budget=Budget()))
    session = await runner.session_service.create_session(
        app_name=runner.app_name, user_id="warm_up"
    )
    message = types.Content(role="user", parts=[types.Part(text="warm up")])
    run = runner.run_async(user_id="warm_up", session_id=session.id, new_message=message)
    async with contextlib.aclosing(run) as events:
        async for _ in events:
            pass
    await runner.close()
