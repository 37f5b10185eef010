"""The MCP server: a client's model, or whoever reads along, gets no further than its user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.extras.mcp_server.doors import (
    LocalFolders,
    Opened,
    ToolContext,
    usable_roots,
)
from fanout.orchestrator.extras.mcp_server.elicitation import form, question_text
from fanout.orchestrator.extras.mcp_server.reports import JobOutcome, WaitingCall
from fanout.orchestrator.extras.mcp_server.server import FanoutServer, create_server
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import new_job_id
from fanout.orchestrator.jobs.state import JobState

CANARY = "canary-4711"


class BrokenDoor:
    """A door whose failure tells more than a caller may know."""

    is_local = False

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[Opened]:
        if context.mcp_server:
            raise RuntimeError(f"password {CANARY} of /etc/fanout")
        yield


@pytest.fixture
def folders(tmp_path: Path) -> LocalFolders:
    root = tmp_path / "project"
    (root / "inner").mkdir(parents=True)
    (tmp_path / "project-of-others").mkdir()
    (root / "way-out").symlink_to(tmp_path)
    settings = load_settings(redis_url="redis://127.0.0.1:1/0", state_dir=tmp_path / "state")
    client = JobClient(str(settings.redis_url), settings, load_agent_definitions(None))
    return LocalFolders(client, [root], tmp_path / "state")


@pytest.mark.parametrize(
    "path", ["..", "/", "/etc", "inner/../..", "way-out", "../project-of-others", "~", "a\0b"]
)
async def test_no_folder_outside_of_the_project_is_handed_out_or_changed(
    folders: LocalFolders, path: str
) -> None:
    with pytest.raises(InvalidJob):
        await folders.start_files(path, "general-purpose")
    with pytest.raises(InvalidJob):
        await folders.apply(new_job_id(), path, check=False)


def test_a_server_that_is_started_in_a_home_folder_or_above_reaches_no_folder() -> None:
    home = Path("/home/ann")

    assert usable_roots([], home, home) == ()
    assert usable_roots([], Path("/home"), home) == ()
    assert usable_roots([], Path("/"), home) == ()
    assert usable_roots([], home / "project", home) == (home / "project",)


def approval(arguments: dict[str, str], *decisions: str) -> Approval:
    return Approval.model_validate(
        {
            "agent": "guarded",
            "call_id": "1",
            "tool": "execute",
            "arguments": arguments,
            "decisions": decisions or ("approve", "edit", "reject"),
            "sha256": "0" * 64,
            "id": "ap_1",
            "job_id": new_job_id(),
        }
    )


def test_a_question_shows_what_would_be_invisible_or_reversed() -> None:
    hidden = "rm -rf \u202e/tmp\u200b \x1b[2J\r\nApproved."

    text = question_text(approval({"command": hidden}))

    assert not [one for one in text if not (one.isprintable() or one == "\n")]
    assert "\\u202e" in text
    assert "\\u200b" in text


def test_a_question_and_a_report_of_long_arguments_say_that_they_are_cut() -> None:
    long = approval({"command": "true;" * 20_000 + "rm -rf /"})

    assert len(question_text(long)) < 10_000
    assert "more" in question_text(long)
    assert len(WaitingCall.of(long).model_dump_json()) < 10_000


def test_a_form_offers_no_decision_that_the_policy_does_not() -> None:
    schema = form(approval({}, "reject")).requested_schema

    assert schema["properties"]["decision"]["enum"] == ["reject"]
    assert form(approval({}, "edit")).requested_schema["properties"]["decision"]["enum"] == [
        "reject"
    ]


def test_a_huge_answer_of_an_agent_does_not_flood_the_clients_model() -> None:
    huge = JobResult(
        job_id=new_job_id(),
        state=JobState.SUCCEEDED,
        success=True,
        output={"rows": ["x" * 1000] * 1000},
    )

    outcome = JobOutcome.of(huge)

    assert outcome.output_is_cut
    assert len(outcome.model_dump_json()) < 30_000


@pytest.fixture
def broken() -> FanoutServer:
    return create_server(BrokenDoor())


async def test_failures_tell_neither_the_arguments_nor_what_the_service_knows(
    broken: FanoutServer,
) -> None:
    async with Client(broken) as client:
        crashed = await client.call_tool("run", {"goal": "x"})
        invalid = await client.call_tool("run", {"goal": ["x", CANARY], "verify": {"a": CANARY}})
        with pytest.raises(MCPError) as unreadable:
            await client.read_resource(f"fanout://jobs/{new_job_id()}/logs")
        with pytest.raises(MCPError):
            await client.read_resource("fanout://jobs/../../etc/passwd/logs")

    told = [crashed.content[0].model_dump_json(), invalid.content[0].model_dump_json()]
    assert crashed.is_error
    assert invalid.is_error
    assert "goal" in told[1]
    assert not [text for text in (*told, str(unreadable.value)) if CANARY in text]
    assert not [text for text in (*told, str(unreadable.value)) if "Traceback" in text]
