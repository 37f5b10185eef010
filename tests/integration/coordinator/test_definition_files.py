"""What a coordinator's definition brings along.

There to read, not to change, and never in a workspace.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from google.adk.runners import InMemoryRunner
from google.genai import types

from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import AgentDefinitions, load_agent_definitions
from orchestrator.configuration.settings import load_settings
from orchestrator.coordinator.coordinator import create_coordinator, create_coordinator_app
from tests.integration.scripts import call, calls, says, write_script

pytestmark = pytest.mark.redis

FOLDER = "/definition"

SCRIPT = {
    "system": r"- plan: Plans\. \(/definition/skills/plan/SKILL\.md\).*"
    r'<memory_file path="/definition/HOUSE\.md">\nHOUSE-RULE',
    "replies": [
        calls(
            call("read_file", file_path=f"{FOLDER}/skills/plan/SKILL.md"),
            call("glob", pattern=f"{FOLDER}/**/*.md"),
            call("write_file", file_path=f"{FOLDER}/skills/plan/more.md", content="x"),
            call("edit_file", file_path=f"{FOLDER}/HOUSE.md", old_string="HOUSE", new_string="MY"),
            call("delete_file", file_path=f"{FOLDER}/skills"),
            call("write_file", file_path="/workspace/made.txt", content="x"),
        ),
        calls(call("ls", path="/workspace")),
        says("Done."),
    ],
}


@pytest.fixture
def definitions(tmp_path: Path) -> AgentDefinitions:
    agents = tmp_path / "agents"
    (agents / "skills" / "plan").mkdir(parents=True)
    (agents / "skills" / "plan" / "SKILL.md").write_text(
        "---\nname: plan\ndescription: Plans.\n---\nBody.\n"
    )
    (agents / "HOUSE.md").write_text("HOUSE-RULE")
    (agents / "secret.env").write_text("KEY=1")
    (agents / "chief.yaml").write_text(
        "name: chief\ndescription: Leads.\nmemory: [HOUSE.md]\nskills: [skills]\ninstruction: Lead.\n"
    )
    return load_agent_definitions(agents)


@pytest.fixture
def client(redis_url: str, tmp_path: Path, definitions: AgentDefinitions) -> JobClient:
    settings = load_settings(redis_url=redis_url, state_dir=tmp_path / "state")
    return JobClient(redis_url, settings, definitions)


async def test_a_coordinator_reads_its_own_files_and_cannot_change_them(
    client: JobClient, tmp_path: Path, workspace: Path
) -> None:
    model = f"scripted:{write_script(tmp_path, SCRIPT)}"
    async with client:
        chief = create_coordinator(client, workspace=workspace, agent="chief", model=model)
        results = await answers(InMemoryRunner(app=create_coordinator_app(chief)))

    read, found, *refused, made, listed = results
    assert "Body." in read["content"]
    paths = [entry["path"] for entry in found["entries"]]
    assert paths == [f"{FOLDER}/HOUSE.md", f"{FOLDER}/skills/plan/SKILL.md"]
    assert [one["error"].partition(":")[0] for one in refused] == ["Permission denied"] * 3
    assert made["status"] == "success"
    assert [entry["path"] for entry in listed["entries"]] == [
        "/workspace/kept.txt",
        "/workspace/made.txt",
    ]


async def answers(runner: InMemoryRunner) -> list[dict]:
    """Run to the end; what the tools answered."""
    await runner.session_service.create_session(
        app_name=runner.app_name, user_id="u", session_id="s"
    )
    message = types.Content(role="user", parts=[types.Part(text="go")])
    found = []
    async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
        found += [dict(one.response or {}) for one in event.get_function_responses()]
    return found
