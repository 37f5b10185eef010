"""A coordinator in a process of its own, with a session on disk: to be killed.

Run as `python -m tests.integration.coordinator.coordinator_process DATABASE SESSION SCRIPT
WORKSPACE`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from orchestrator.client import JobClient
from orchestrator.coordinator.coordinator import USER_ID, create_coordinator, create_coordinator_app


async def main(database: str, session_id: str, script: str, workspace: str) -> None:
    client = JobClient.from_settings()
    coordinator = create_coordinator(client, workspace=Path(workspace), model=f"scripted:{script}")
    runner = Runner(
        app=create_coordinator_app(coordinator), session_service=SqliteSessionService(database)
    )
    message = types.Content(role="user", parts=[types.Part(text="the goal")])
    async for _ in runner.run_async(user_id=USER_ID, session_id=session_id, new_message=message):
        pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
