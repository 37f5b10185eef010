"""The four coding agents from npm, as jobs in Docker sandboxes: seven promises for each of them.

Their definitions are those that `fanout agents add` writes, with the model service of the tests in
place of the real one: behind TLS, with a certificate of a private authority, its key put in by the
proxy. What an agent does in another way is in the table of docs/coding-agents.md, and printed here.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.coding_agents import CODING_AGENTS, CodingAgent
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.ceilings import Ceilings
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.conftest import docker_answers
from tests.https_host import PrivateAuthority
from tests.integration.worker.approvals import file_of, journal
from tests.model_service import INPUT_TOKENS, OUTPUT_TOKENS, Model, model_service
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(400)]

CANARY = "canary-key-5f1d92"
HOST = "models.example"
SERVICES = (
    "api.anthropic.com",
    "api.openai.com",
    "generativelanguage.googleapis.com",
)
WAITING = ("sleep", "86397")
"""The process of the command below: no other one of this machine is like it."""
WAITS = f"if [ ! -e waited ]; then touch waited; {' '.join(WAITING)}; fi"
"""A command that ends only when it is run again."""
JOB_SECONDS = 240
SEARCH = """python3 - <<'END'
import os, pathlib, re
PAGE = os.sysconf("SC_PAGE_SIZE")
wanted = re.compile(rb"canary-[k]ey-5f1d92|Y2FuYXJ5LWtle[S]01ZjFkOTI")
hits, environments, memories, files = [], 0, 0, 0
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if folder.name == str(os.getpid()):
        continue
    try:
        hits += [str(folder)] if wanted.search((folder / "environ").read_bytes()) else []
        environments += 1
        with open(folder / "maps") as maps, open(folder / "mem", "rb", 0) as memory, open(
            folder / "pagemap", "rb", 0
        ) as pages:
            for line in maps:
                bounds, rights = line.split()[:2]
                start, end = (int(one, 16) // PAGE for one in bounds.split("-"))
                if rights[:2] != "rw":
                    continue
                while start < end:  # the last byte of a page's mark says whether it is there
                    pages.seek(8 * start)
                    marks = pages.read(8 * min(end - start, 1 << 20))[7::8]
                    for run in re.finditer(b"[\\x40-\\xff]+", marks):
                        memory.seek((start + run.start()) * PAGE)
                        try:
                            part = memory.read(len(run[0]) * PAGE)
                        except OSError:
                            continue
                        hits += [f"{folder} memory"] if wanted.search(part) else []
                    start += len(marks) or end
        memories += 1
    except (OSError, ValueError, OverflowError):
        pass
for root in ("/workspace", os.environ["HOME"], "/home", "/tmp", "/etc", "/opt/agent"):
    for path in pathlib.Path(root).rglob("*"):
        try:
            if path.is_file() and path.stat().st_size < 1 << 26:
                hits += [str(path)] if wanted.search(path.read_bytes()) else []
                files += 1
        except OSError:
            pass
pathlib.Path("/workspace/found.json").write_text(
    '{"hits": %d, "environments": %d, "memories": %d, "files": %d}'
    % (len(hits), environments, memories, files)
)
END"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Model, Path]]:
    """The port of the model service, its model, and the file of the authority."""
    authority = PrivateAuthority(tmp_path_factory.mktemp("authority"))
    with model_service(authority.context(HOST)) as (port, model):
        yield port, model, authority.ca_file


def definition(agent: CodingAgent, port: int) -> str:
    """The definition that fanout ships, for the model service of the tests."""
    text = agent.definition.read_text("utf-8")
    for host in SERVICES:
        text = text.replace(f"https://{host}", f"https://{HOST}:{port}")
        text = text.replace(f"network: [{host}]", f'network: ["{HOST}:{port}", "127.0.0.1:{port}"]')
        text = text.replace(f"host: {host}", f'host: "{HOST}:{port}"')
    assert "googleapis" not in text
    return text


@pytest.fixture(scope="module")
def place(
    install_for_module: Installer, service: tuple[int, Model, Path], tmp_path_factory: Any
) -> Installation:
    port, _, ca_file = service
    agents: dict[str, str] = {}
    for name, agent in CODING_AGENTS.items():
        text = definition(agent, port)
        agents[name] = text
        agents[f"{name}-asks"] = (
            text.replace(f"name: {name}\n", f"name: {name}-asks\n")
            + "\ninterrupt_on: {execute: true}\n"
        )
    hosts = [f"{HOST}:{port}", f"127.0.0.1:{port}"]
    secrets = {
        f"FANOUT_SECRETS__{name}": CANARY for name in ("ANTHROPIC_KEY", "OPENAI_KEY", "GEMINI_KEY")
    }
    made = install_for_module(
        agents=agents,
        FANOUT_CEILINGS__NETWORK=json.dumps(hosts),  # a job may not name an address else
        FANOUT_SANDBOX__PROVIDER="docker",
        FANOUT_SANDBOX__CA_FILE=str(ca_file),
        **secrets,
    )
    ceilings = Ceilings(network=tuple(hosts))
    made.settings = made.settings.model_copy(update={"ceilings": ceilings})
    start_worker(made)
    return made


def start_worker(place: Installation) -> None:
    place.start_worker(module="tests.end_to_end.named_worker", forked=False)


@pytest.fixture(params=sorted(CODING_AGENTS))
def agent(request: pytest.FixtureRequest) -> CodingAgent:
    agent = CODING_AGENTS[request.param]
    if not docker_answers():
        pytest.skip("No Docker engine answers.")
    shown = subprocess.run(
        ["docker", "image", "inspect", agent.image, "--format", '{{index .Config.Labels "fanout.package"}}'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if shown.returncode:
        pytest.skip("There is no image of a coding agent: fanout images build NAME.")
    assert shown.stdout.strip() == agent.pinned
    return agent


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], agent: CodingAgent) -> Callable[[str], None]:
    """Print a line about the agent, with its version."""

    def tell(line: str) -> None:
        with capsys.disabled():
            print(f"\n{agent.title} ({agent.pinned}): {line}")

    return tell


def task(*commands: str, say: str = "Finished.") -> str:
    return "\n".join(["Do this.", *(f"RUN: {command}" for command in commands), f"SAY: {say}"])


async def submit(place: Installation, client: JobClient, text: str, **fields: Any) -> str:
    await place.ready(client)
    return await client.submit(make_spec(text, **fields), **_workspace(place))


def _workspace(place: Installation) -> dict[str, Any]:
    folder = place.folder / "project"
    folder.mkdir(exist_ok=True)
    (folder / "old.txt").write_text("old\n")
    return {"workspace": folder}


async def until_waiting(client: JobClient, job_id: str) -> None:
    """Wait until the agent has begun the call `WAITS`, and its command has begun to wait."""
    async with asyncio.timeout(JOB_SECONDS):
        async for event in client.events(job_id):
            assert not event.ends_job, event.data
            if event.type is EventType.TOOL_CALL and "waited" in json.dumps(event.data):
                break
    await eventually(waiting)


def waiting() -> list[str]:
    """The processes that wait, in whatever sandbox."""
    wanted = b"".join(word.encode() + b"\0" for word in WAITING)
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if file.read_bytes() == wanted:
                found.append(file.parent.name)
    return found


async def sessions(client: JobClient, job_id: str) -> list[str]:
    """The sessions of a job's agent, in order."""
    found = [
        event.data["event"]["custom_metadata"]["acp"].get("session")
        async for event in client.events(job_id, follow=False)
        if isinstance(event.data.get("event"), dict)
        and "acp" in (event.data["event"].get("custom_metadata") or {})
    ]
    return [*dict.fromkeys(str(one) for one in found if one)]


async def asked(client: JobClient, job_id: str) -> Approval:
    """What the job waits for, once it waits: an agent takes half a minute to begin."""
    async with asyncio.timeout(JOB_SECONDS):
        async for event in client.events(job_id):
            assert not event.ends_job, event.data
            if event.type is EventType.JOB_STATE and event.data["state"] == JobState.WAITING:
                break
    (approval,) = [one for one in await client.approvals() if one.job_id == job_id]
    return approval


def changes(result: JobResult) -> list[tuple[str, str]]:
    return sorted((file.path, str(file.change)) for file in result.files_modified)


async def test_it_finishes_with_exact_changes_and_its_usage_is_metered(
    place: Installation, service: Any, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    _, model, _ = service
    model.requests.clear()
    async with place.client() as client:
        text = task("printf 'one\\n' > one.txt", "rm old.txt")
        job_id = await submit(place, client, text, agent=agent.name)
        result = await client.wait(job_id, JOB_SECONDS)

        assert result.success, result.error
        assert changes(result) == [("old.txt", "deleted"), ("one.txt", "added")]
        assert await file_of(client, job_id, "one.txt") == "one\n"
        assert result.summary.endswith("Finished.")
        calls = await journal(client, job_id, EventType.TOOL_CALL)
        assert sum("one.txt" in json.dumps(call.data) for call in calls) == 1
        results = await journal(client, job_id, EventType.TOOL_RESULT)
        assert len(results) == len(calls)
    usage = result.usage
    assert usage.model_calls == len(model.requests) >= 3
    assert usage.input_tokens == usage.model_calls * INPUT_TOKENS
    assert usage.output_tokens == usage.model_calls * OUTPUT_TOKENS
    assert all(CANARY in json.dumps(headers) for _, headers, _ in model.requests)
    assert model.unknown == []
    tell(f"finished, {usage.model_calls} requests metered, {usage.cost_usd} USD")


async def test_it_is_cancelled_while_it_works(
    place: Installation, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    async with place.client() as client:
        job_id = await submit(place, client, task("touch begun", WAITS), agent=agent.name)
        await until_waiting(client, job_id)
        began = asyncio.get_running_loop().time()
        await client.cancel(job_id)
        result = await client.wait(job_id, JOB_SECONDS)
        seconds = asyncio.get_running_loop().time() - began

        assert result.state is JobState.CANCELLED
        await eventually(lambda: not waiting())
    tell(f"cancelled in {seconds:.1f} s")


async def test_another_worker_goes_on_after_a_kill(
    place: Installation, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    async with place.client() as client:
        text = task("echo one >> one.txt", WAITS, "echo three > three.txt")
        job_id = await submit(place, client, text, agent=agent.name)
        await until_waiting(client, job_id)
        place.workers[-1].kill()
        start_worker(place)
        result = await client.wait(job_id, JOB_SECONDS)

        assert result.success, result.error
        assert ("three.txt", "added") in changes(result)
        seen = await sessions(client, job_id)
        one = await file_of(client, job_id, "one.txt")
    assert len(seen) in {1, 2}
    way = "its session was loaded" if len(seen) == 1 else "a new session was told what was done"
    tell(f"resumed: {way}; its first step was done {one.count('one')} times")


async def test_a_person_approves_what_it_asks_for(
    place: Installation, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    async with place.client() as client:
        text = task("echo approved > approved.txt")
        job_id = await submit(place, client, text, agent=f"{agent.name}-asks")
        approval = await asked(client, job_id)
        assert approval.tool == "execute"
        assert "approved.txt" in json.dumps(approval.arguments)
        assert await client.result(job_id) is None
        answered = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "fanout", "approve", approval.id],
            env=place.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert answered.returncode == 0, answered.stderr
        result = await client.wait(job_id, JOB_SECONDS)

        assert result.success, result.error
        assert ("approved.txt", "added") in changes(result)
        resolved = await journal(client, job_id, EventType.APPROVAL_RESOLVED)
        seen = await sessions(client, job_id)
    assert len(resolved) == 1
    way = "in its session" if len(seen) == 1 else "in a new session"
    tell(f"asked once, went on {way}")


async def test_a_failing_verification_is_reworked_in_its_own_session(
    place: Installation, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    async with place.client() as client:
        verify = "test -e fixed.txt || { echo 'RUN: touch fixed.txt'; exit 1; }"
        text = task("touch broken.txt")
        job_id = await submit(place, client, text, agent=agent.name, verify=verify)
        result = await client.wait(job_id, JOB_SECONDS)

        assert result.success, result.error
        assert result.verified is not None
        assert result.verified.exit_code == 0
        assert {("broken.txt", "added"), ("fixed.txt", "added")} <= {*changes(result)}
        assert len(await journal(client, job_id, EventType.VERIFY)) == 2
        assert len(await sessions(client, job_id)) == 1
    tell("reworked in its session")


async def test_its_time_and_its_tokens_are_limits(
    place: Installation, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    async with place.client() as client:
        spend = task(*(f"echo {number} > {number}.txt" for number in range(30)))
        spender = await submit(
            place, client, spend, agent=agent.name, limits={"max_tokens": 5 * INPUT_TOKENS}
        )
        spent = await client.wait(spender, JOB_SECONDS)
        assert not spent.success
        assert spent.error is not None
        assert "max_tokens" in spent.error.message
        assert spent.usage.input_tokens < 15 * INPUT_TOKENS

        waiter = await submit(
            place, client, task(WAITS), agent=agent.name, limits={"timeout_seconds": 25}
        )
        waited = await client.wait(waiter, JOB_SECONDS)
        assert waited.state is JobState.TIMED_OUT
    tell(f"stopped by max_tokens after {spent.usage.model_calls} requests, and by its time")


async def test_no_key_is_inside(
    place: Installation, agent: CodingAgent, tell: Callable[[str], None]
) -> None:
    script = place.folder / "project" / "search.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SEARCH)
    async with place.client() as client:
        text = task("bash search.sh", "cat found.json")
        job_id = await submit(place, client, text, agent=agent.name)
        result = await client.wait(job_id, JOB_SECONDS)
        script.unlink()

        assert result.success, result.error
        found = json.loads(await file_of(client, job_id, "found.json"))
    assert found["hits"] == 0, found
    assert found["environments"] >= 2, found  # the agent and the shell
    assert found["memories"] >= 2, found
    assert found["files"] > 100, found
    tell(f"no key in {found}")
