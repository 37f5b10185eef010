"""Jobs in prepared environments, on real workers with containers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.installations import list_installations, remove
from tests.builders import make_spec
from tests.integration.scripts import call, calls, conversation, says
from tests.package_index import Index, package_index
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.timeout(400)]


def runs(when: str, command: str) -> dict[str, Any]:
    return conversation(
        when, calls(call("execute", command=command)), says("## Summary\n{{last_result}}")
    )


USES_PYTHON = (
    "cat src/project.egg-info/PKG-INFO; .venv/bin/python -c 'import project; print(project.hi())'"
)
SCRIPT = (
    runs("use the package", USES_PYTHON),
    runs("spoil it", "echo spoilt >> .venv/pyvenv.cfg; rm -r src/*.egg-info; echo new > new.py"),
    runs("look around", "ls -A; cat made/mark"),
)
CODER = """
name: coder
description: Changes a Python project.
instruction: Do it.
setup:
  commands:
    - python3 -m venv .venv
    - .venv/bin/pip install --index-url {url}/simple --trusted-host {name} -e .
  network: ["{host}"]
  key_files: [pyproject.toml]
"""
BACKEND = """
import pathlib, zipfile
INFO = "project-1.dist-info"
def get_requires_for_build_editable(config_settings=None):
    return []
def prepare_metadata_for_build_editable(folder, config_settings=None):
    info = pathlib.Path(folder, INFO)
    info.mkdir()
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\\nName: project\\nVersion: 1\\nRequires-Dist: leaf\\n")
    info.joinpath("WHEEL").write_text(
        "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return INFO
def build_editable(folder, config_settings=None, metadata_directory=None):
    egg = pathlib.Path("src/project.egg-info")
    egg.mkdir(exist_ok=True)
    egg.joinpath("PKG-INFO").write_text("Name: project\\n")
    name = "project-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("project.pth", str(pathlib.Path("src").absolute()) + "\\n")
        for part in ("METADATA", "WHEEL"):
            wheel.write(pathlib.Path(metadata_directory, part), f"{INFO}/{part}")
        wheel.writestr(f"{INFO}/RECORD", "")
    return name
"""
FILES = {
    ".gitignore": ".venv/\n*.egg-info/\nmade/\n",
    "pyproject.toml": '[project]\nname = "project"\nversion = "1"\ndependencies = ["leaf"]\n'
    '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "src/project.py": "import leaf\ndef hi():\n    return 'hello from ' + leaf.name\n",
}


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with package_index() as served:
        served.add_wheel("leaf", "1.0", {"leaf.py": "name = 'the leaf'\n"})
        yield served


@pytest.fixture(scope="module")
def place(index: Index, install_for_module: Installer) -> Iterator[Installation]:
    agents = install_for_module.folder / "agents"
    agents.mkdir(parents=True)
    name = index.host.partition(":")[0]
    (agents / "coder.yaml").write_text(CODER.format(url=index.url, name=name, host=index.host))
    place = install_for_module(
        *SCRIPT,
        workers=1,
        FANOUT_SANDBOX__PROVIDER="docker",
        FANOUT_AGENTS_DIR=str(agents),
        FANOUT_CEILINGS__NETWORK=json.dumps([index.host]),
    )
    yield place
    for worker in place.workers:
        worker.stop()
    asyncio.run(remove_volumes(place.identity))


async def remove_volumes(installation: str) -> None:
    """Environments stay when the last worker ends: no test may leave them on the engine."""
    engine = Engine()
    for found in await list_installations(engine):
        if found.id == installation:
            assert await remove(engine, found) == []
    await engine.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def make_project(
    folder: Path, remote: str = "https://git.example/team/project", **more: str
) -> Path:
    for path, text in {**FILES, **more}.items():
        file = folder / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for arguments in (
        ("init", "-q"),
        ("remote", "add", "origin", remote),
        ("add", "-A"),
        ("-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "-qm", "First"),
    ):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder


async def run(client: JobClient, spec: JobSpec, workspace: Path) -> tuple[JobResult, str]:
    """Run a job; return its result, and the key of its environment."""
    job_id = await client.submit(spec, workspace=workspace)
    result = await client.wait(job_id, 120)
    ready = [
        event.data
        async for event in client.events(job_id, follow=False)
        if event.type is EventType.SANDBOX_READY
    ]
    return result, str(ready[0].get("environment", "")) if ready else ""


async def test_an_editable_installation_is_made_once_and_serves_every_job_after(
    client: JobClient, project: Path, index: Index
) -> None:
    first, key = await run(client, make_spec("use the package", agent="coder"), project)
    asked = len(index.asked)
    spoilt, same = await run(client, make_spec("spoil it", agent="coder"), project)
    (project / "src" / "project.py").write_text("def hi():\n    return 'changed'\n")
    last, again = await run(client, make_spec("use the package", agent="coder"), project)

    assert first.success, first.error
    assert "hello from the leaf" in first.summary
    assert "Name: project" in first.summary
    assert first.files_modified == ()
    assert [file.path for file in spoilt.files_modified] == ["new.py"]
    assert "changed" in last.summary
    assert "Name: project" in last.summary
    assert key
    assert key == same == again
    assert 0 < asked == len(index.asked)
