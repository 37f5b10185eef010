"""A deep agent in a process of its own, with its session in a database: to be killed, and resumed.

Run as `python -m tests.integration.conversations.conversation_process DATABASE SCRIPT LOG HOW`,
where HOW is `start`, `message` (a new message goes on) or `invocation` (the broken run goes on).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types

from fanout.orchestrator.deep_agent import create_deep_agent, create_deep_app

WHO = {"app_name": "fanout", "user_id": "u", "session_id": "s"}


def tools(log: Path) -> list[Any]:
    """Tools that tell when they ran; the second one does not end in the first process."""

    async def record(name: str) -> dict[str, str]:
        """Record a name."""
        _write(log, f"record {name}")
        return {"recorded": name}

    async def stall() -> dict[str, str]:
        """Wait for long at the first call."""
        if _write(log, "stall").count("stall") == 1:
            await asyncio.sleep(600)
        return {"stalled": "no longer"}

    return [record, stall]


def _write(log: Path, line: str) -> str:
    with log.open("a") as file:
        file.write(line + "\n")
    return log.read_text()


async def main(database: str, script: str, log: str, how: str) -> None:
    sessions = DatabaseSessionService(f"sqlite+aiosqlite:///{database}")
    agent = create_deep_agent(f"scripted:{script}", tools(Path(log)))
    runner = Runner(app=create_deep_app(agent), session_service=sessions)
    if how == "start":
        await sessions.create_session(**WHO)
    text = "the goal" if how == "start" else "go on"
    start: dict[str, Any] = {
        "new_message": types.Content(role="user", parts=[types.Part(text=text)])
    }
    if how == "invocation":
        session = await sessions.get_session(**WHO)
        assert session is not None
        start = {"invocation_id": session.events[-1].invocation_id}
    async for _ in runner.run_async(user_id="u", session_id="s", **start):
        pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
