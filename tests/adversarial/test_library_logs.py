"""A program that uses the deep agent as a library logs no local variables in any set-up."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, logging
from collections.abc import AsyncGenerator
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from fanout import create_deep_agent
import structlog

KEY = "canary-" + "4711" * 8

class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError(KEY)

class Broken(BaseLlm):
    async def generate_content_async(self, request, stream=False):
        api_key = KEY
        conversation = [request] * 100
        raise Unsayable
        yield

class Parent(BaseLlm):
    async def generate_content_async(self, request, stream=False):
        if len(request.contents) > 1:
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))
            return
        call = types.FunctionCall(name="task", args=dict(description="x", subagent_type="child"))
        part = types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))

child = dict(name="child", description="x", model=Broken(model="broken"))

async def main():
    agent = create_deep_agent(Parent(model="parent"), subagents=[child])
    runner = InMemoryRunner(agent=agent, app_name="program")
    await runner.session_service.create_session(app_name="program", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go " + KEY)])
    async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
        for answer in event.get_function_responses():
            assert answer.response["status"] == "error", answer

before = structlog.is_configured(), list(logging.getLogger().handlers)
asyncio.run(main())
assert before == (structlog.is_configured(), list(logging.getLogger().handlers))
show = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
for configuration in ({}, {"processors": show}):  # both show local variables of an exception
    print("configured", flush=True)
    structlog.configure(**configuration)
    asyncio.run(main())
structlog.reset_defaults()
from rich.logging import RichHandler
shown = RichHandler(rich_tracebacks=True, tracebacks_show_locals=True)
logging.basicConfig(level="WARNING", handlers=[shown])  # ADK's records as well
print("configured", flush=True)
asyncio.run(main())
"""


def test_a_failure_in_a_sub_agent_logs_no_local_variables(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    printed = ran.stdout + ran.stderr
    assert ran.returncode == 0, printed[-2000:]
    before, *configured = ran.stdout.split("configured\n")
    assert not before  # the standard output is the program's own
    assert "sub-agent failed" in ran.stderr
    assert ["sub-agent" in each for each in configured] == [True, True, True]
    assert "canary" not in printed
    assert "Traceback" not in printed
