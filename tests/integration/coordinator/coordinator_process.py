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

from fanout.orchestrator.adk.task_toolset import TaskToolset
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent import create_deep_app
from tests.integration.coordinator.driving import APP_NAME, USER_ID, coordinating


async def main(database: str, session_id: str, script: str, workspace: str) -> None:
    client = JobClient.from_settings()
    agent = coordinating(TaskToolset(client, Path(workspace)), f"scripted:{script}")
    app = create_deep_app(agent, name=APP_NAME)
    runner = Runner(app=app, session_service=SqliteSessionService(database))
    message = types.Content(role="user", parts=[types.Part(text="the goal")])
    async for _ in runner.run_async(user_id=USER_ID, session_id=session_id, new_message=message):
        pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
