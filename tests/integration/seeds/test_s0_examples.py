"""S0, chapter 8: the examples, each text as the seed has it unless a comment says otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from fanout.orchestrator.deep_agent import ModelFailed
from tests.integration.scripts import call
from tests.integration.seeds.conftest import Example, Replies, converse
from tests.unit.deep_agent.running import texts

QUICKSTART = """
from adk_deepagents import create_deep_agent
from google.adk.runners import InMemoryRunner

agent = create_deep_agent()
runner = InMemoryRunner(agent=agent)
"""
SESSION = """
# ADK's create_session is a coroutine and wants a user; the runner's app is named InMemoryRunner.
session = asyncio.run(
    runner.session_service.create_session(app_name=runner.app_name, user_id="user")
)

# Interactive loop
# ADK's run wants the user, and the message as content.
result = runner.run(
    user_id="user",
    session_id=session.id,
    new_message=types.Content(role="user", parts=[types.Part(text="List files in /")]),
)
"""

CONTENT_BUILDER = """
from adk_deepagents import create_deep_agent
from adk_deepagents.backends import FilesystemBackend

agent = create_deep_agent(
    memory=["./AGENTS.md"],
    skills=["./skills/"],
    tools=[web_search, generate_cover],
    subagents=[researcher_spec],
    backend=FilesystemBackend(root_dir="."),
)
"""

DEEP_RESEARCH = """
from adk_deepagents import create_deep_agent

agent = create_deep_agent(
    model="gemini-2.5-pro",
    tools=[tavily_search, think_tool],
    instruction=RESEARCH_INSTRUCTIONS,
    subagents=[{"name": "research-agent", "description": "...", "system_prompt": "..."}],
)
"""

SKILL = "---\nname: post\ndescription: Writes a post.\n---\n"


async def web_search(query: str) -> dict[str, Any]:
    """Search the web."""
    return {"found": query}


async def generate_cover(title: str) -> dict[str, Any]:
    """Draw a cover."""
    return {"cover": title}


async def think_tool(thought: str) -> str:
    """Think."""
    return thought


def test_8_1_quickstart_needs_a_key_for_its_first_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    names: dict[str, Any] = {}
    exec(QUICKSTART.replace("adk_deepagents", "fanout"), names)  # noqa: S102 - the seed's text

    with pytest.raises(ModelFailed, match=r"gemini-2\.5-flash needs GOOGLE_API_KEY"):
        asyncio.run(converse(names["agent"]))


def test_8_1_quickstart(example: Example, replies: Replies) -> None:
    replies += [{"calls": [call("ls", path="/"), call("task", description="look")]}, {"text": "ok"}]
    made = example(QUICKSTART + SESSION, asyncio=asyncio, types=types)
    events = list(made["result"])

    listed, delegated = (
        dict(each.response or {}) for event in events for each in event.get_function_responses()
    )
    assert listed == {"status": "success", "entries": []}
    assert delegated["status"] == "success"
    assert texts(events[-1]) == "ok"


def test_8_2_content_builder(
    example: Example, replies: Replies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "skills" / "post").mkdir(parents=True)
    (tmp_path / "skills" / "post" / "SKILL.md").write_text(SKILL)
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    monkeypatch.chdir(tmp_path)
    replies += [
        {
            "calls": [
                call("web_search", query="tea"),
                call("read_file", file_path="/skills/post/SKILL.md"),
                call("write_file", file_path="/post.md", content="Tea."),
                call("task", description="look", subagent_type="researcher"),
            ]
        },
        {"text": "ok"},
    ]
    spec = {"name": "researcher", "description": "Researches.", "tools": [web_search]}
    made = example(
        CONTENT_BUILDER,
        web_search=web_search,
        generate_cover=generate_cover,
        researcher_spec=spec,
    )
    run = asyncio.run(converse(made["agent"]))

    searched, read, written, delegated = run.results
    assert searched == {"found": "tea"}
    assert "Writes a post." in read["content"]
    assert written["status"] == "success"
    assert (tmp_path / "post.md").read_text() == "Tea."
    assert delegated["status"] == "success"


def test_8_3_deep_research(example: Example, replies: Replies) -> None:
    replies += [
        {
            "calls": [
                call("think_tool", thought="hm"),
                call("task", description="find out", subagent_type="research-agent"),
            ]
        },
        {"text": "ok"},
    ]
    made = example(
        DEEP_RESEARCH,
        tavily_search=web_search,
        think_tool=think_tool,
        RESEARCH_INSTRUCTIONS="Research {topic} as JSON: {}.",
    )
    run = asyncio.run(converse(made["agent"]))

    assert run.results[1]["status"] == "success"
    assert run.text == "ok"
