"""Memory and skills on workers.

From the repository and from beside the definition, on both sandboxes.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.configuration.settings import LimitSettings
from fanout.orchestrator.jobs.spec import new_job_id
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.attempt.known_files import DefinitionFolder
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, SandboxSpec
from tests.builders import make_spec
from tests.fixtures import DOCKER_SLOWLY
from tests.integration.scripts import call, calls, says
from tests.services import Installation, Installer
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIBE = """
name: scribe
description: Stamps files.
memory: [/workspace/AGENTS.md, HOUSE.md]
skills: [skills, /workspace/skills]
instruction: Do it.
"""

SKILL = """---
name: stamp
description: Stamps a file.
---
Run scripts/stamp.sh.
"""

SYSTEM = r"REPOSITORY-RULE.*</memory_file>.*HOUSE-RULE"
"""What the agent is told: the repository's file comes first."""

LISTED = r"- local-one: \S+ \(/workspace/skills.*- stamp: Stamps a file\. \((\S+)/SKILL\.md\)"
"""Gives the script the folder of the skill, which is another one in each kind of sandbox."""

STAMP = calls(call("execute", command="{{1}}/scripts/stamp.sh"))

SCRIPT = (
    {
        "when": "stamp it",
        "system": f"{LISTED}.*{SYSTEM}",
        "replies": [
            calls(call("read_file", file_path="{{1}}/SKILL.md")),
            STAMP,
            says("## Summary\n{{last_result}}"),
        ],
    },
    {
        "when": "stamp twice",
        "system": LISTED,
        "replies": [
            calls(
                call("execute", command="echo broken > {{1}}/scripts/stamp.sh; echo x > AGENTS.md")
            ),
            calls(call("execute", command="sleep 8")),
            STAMP,
            says("## Summary\nDone."),
        ],
    },
    {"when": "stamp twice", "replies": [says("## Summary\nNothing was told.")]},
)


def make_agents(folder: Path) -> Path:
    scripts = folder / "agents" / "skills" / "stamp" / "scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "SKILL.md").write_text(SKILL)
    (scripts / "stamp.sh").write_text(
        "#!/bin/sh\necho stamped >> /workspace/stamp.txt; cat $(dirname $0)/ink\n"
    )
    (scripts / "stamp.sh").chmod(0o755)
    (scripts / "ink").write_text("blue ink\n")
    (folder / "agents" / "HOUSE.md").write_text("HOUSE-RULE")
    (folder / "agents" / "scribe.yaml").write_text(SCRIBE)
    return folder / "agents"


@pytest.fixture(scope="module", params=DOCKER_SLOWLY)
def place(request: pytest.FixtureRequest, install_for_module: Installer) -> Installation:
    install = install_for_module.below(request.param)
    agents = str(make_agents(install.folder))
    return install(
        *SCRIPT, workers=1, FANOUT_SANDBOX__PROVIDER=request.param, FANOUT_AGENTS_DIR=agents
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "skills" / "local-one").mkdir(parents=True)
    (folder / "skills" / "local-one" / "SKILL.md").write_text(
        "---\nname: local-one\ndescription: Local.\n---\n"
    )
    (folder / "AGENTS.md").write_text("REPOSITORY-RULE\n")
    return folder


async def content(client: JobClient, job_id: str) -> dict[str, str]:
    """What the job changed: path and new content."""
    found = {}
    async with client.changes(job_id) as bundle:
        for file in bundle.changes.files:
            assert file.after is not None
            found[file.path] = (await asyncio.to_thread(bundle.content, file.after)).decode()
    return found


async def test_memory_is_shown_and_a_skill_is_listed_read_and_its_script_run(
    client: JobClient, workspace: Path
) -> None:
    job_id = await client.submit(make_spec("stamp it", agent="scribe"), workspace=workspace)
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    assert "blue ink" in result.summary
    answers = [
        event.data
        async for event in client.events(job_id, follow=False)
        if event.type is EventType.TOOL_RESULT
    ]
    assert "Run scripts/stamp.sh" in str(answers[0])
    assert await content(client, job_id) == {"stamp.txt": "stamped\n"}


async def test_another_attempt_has_memory_and_skills_as_they_were(
    place: Installation, client: JobClient, workspace: Path
) -> None:
    job_id = await client.submit(make_spec("stamp twice", agent="scribe"), workspace=workspace)
    await until_event(client, job_id, EventType.TOOL_CALL, 2)
    place.start_worker()
    first = place.workers[0]
    assert first.process is not None
    first.send(signal.SIGTERM)
    result = await client.wait(job_id, 60)

    assert result.summary.endswith("Done."), result
    assert (await content(client, job_id))["stamp.txt"] == "stamped\n"


@pytest.fixture
def scribe(tmp_path: Path) -> AgentDefinition:
    return load_agent_definition(make_agents(tmp_path) / "scribe.yaml")


@pytest.fixture(params=["bound", "unbound"])
def local_provider(request: pytest.FixtureRequest, tmp_path: Path) -> LocalProvider:
    made = LocalProvider(_no_snapshot, tmp_path / "sandboxes", "test")
    if request.param == "unbound":
        made._bound = False  # as on a machine where commands get no mount namespace
    return made


async def test_own_files_have_one_path_for_the_shell_and_for_file_tools(
    scribe: AgentDefinition, local_provider: LocalProvider
) -> None:
    limits = LimitSettings().for_jobs()
    spec = SandboxSpec(job_id=new_job_id(), attempt=1, image="", limits=limits)

    async with local_provider.open(spec) as sandbox:
        definition = DefinitionFolder(scribe, sandbox.home)
        await definition.write_into(sandbox)
        skill = f"{definition.path}/skills/stamp"
        read = await sandbox.read_bytes(f"{skill}/SKILL.md")
        listed = [entry.path for entry in await sandbox.list(skill)]
        ran = await sandbox.run(
            Command(argv=f'test -x "{skill}/scripts/stamp.sh" && ls "$HOME/definition"')
        )

    assert ran.exit_code == 0, ran
    assert read.decode() == SKILL
    assert listed == [f"{skill}/SKILL.md", f"{skill}/scripts"]
    assert ran.output.decode().split() == ["HOUSE.md", "skills"]


async def _no_snapshot(snapshot: str) -> Path:
    raise AssertionError(snapshot)
