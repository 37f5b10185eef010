"""What jobs do that are hard to stop, and how tests see that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from redis.asyncio import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.integration.models.model_server import Answer, environment, model_server, text
from tests.integration.scripts import DONE, conversation, shell, write_agents, write_script
from tests.integration.worker.approvals import SUPERVISED
from tests.integration.worker.children import GUARDED_LEAD, LEAD, delegates
from tests.services import Installation, installation
from tests.waits import eventually, until_event

LATE_SECONDS = 40.0
"""The promise is two seconds, which `make bench` measures. This tells an end that was asked for
from one that came of itself, which takes ten minutes and more, on a busy machine, too."""
DYING_SECONDS = 30.0
"""Until the kernel has ended what was killed, and the engine has noticed it, on a busy machine."""

COMMANDS = {
    "deaf": "trap '' TERM INT HUP; while :; do {sleep} & wait; done",
    "daemon": "(setsid sh -c 'cd /; {sleep} &' >/dev/null 2>&1 &); {sleep}",
    "nameless": "(cd /; env -i setsid sh -c '{sleep} & {sleep} &' >/dev/null 2>&1 </dev/null &); {sleep}",
    "forks": "i=0; while [ $i -lt 60 ]; do setsid {sleep} & i=$((i+1)); done; trap '' TERM; wait",
    "holds its output": "sh -c '{sleep} & exit 0'; {sleep}",
    "nohup": "nohup {sleep} >/dev/null 2>&1 & disown 2>/dev/null; {sleep}",
    "writes": "trap '' TERM; ({sleep} &); while :; do date +%N >> grows.txt; sleep 0.02; done",
}
"""Each after it has changed something; `{sleep}` is one that no other job has."""
FIRST_SLEEP = 1_000_000_000 + 100 * os.getpid()
"""Of this process: other tests run at the same time, and all processes of the machine are looked
at."""
WORDS = {name: f"sleep {FIRST_SLEEP + at}" for at, name in enumerate(COMMANDS)}
BEGUN = "echo before > before.txt; "

SCRIPT = (
    *(
        conversation(f"^run {name}$", shell(BEGUN + command.replace("{sleep}", WORDS[name])), DONE)
        for name, command in COMMANDS.items()
    ),
    conversation(
        "^top$", shell(BEGUN + "true"), delegates("middle", "run writes", agent="lead"), DONE
    ),
    conversation("^middle$", delegates("run deaf", "run daemon", "model backs off"), DONE),
    conversation("^ask$", shell("true"), DONE),
    conversation("^thinks$", shell(BEGUN + "true"), {**DONE, "delay_seconds": 600}),
    conversation(
        "^model backs off$", {"error": {"status": 503, "times": 99, "retry_after_seconds": 600}}
    ),
)

HANGS = Answer(hangs=True, parts=[text("Thinking of it, and then nothing more.")])


AGENTS = {**SUPERVISED, "lead": LEAD, "guarded-lead": GUARDED_LEAD}
"""The agents that these jobs need."""


def running(word: str) -> list[str]:
    """The processes of this machine whose command line has these words.

    Containers' are among them.
    """
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and folder.name.isdigit():
            found.append(f"{folder.name}: {line[:80]}")
    return found


async def gone(word: str, within_seconds: float = DYING_SECONDS) -> list[str]:
    """What still runs of it after so long."""
    return await _emptied(partial(asyncio.to_thread, running, word), within_seconds)


async def until_running(word: str) -> None:
    await eventually(lambda: asyncio.to_thread(running, word))


async def now(redis: Redis) -> float:
    """By the clock that journals are written by."""
    seconds, micros = await redis.time()
    return int(seconds) + int(micros) / 1e6


async def ended_at(client: JobClient, job_id: str) -> float:
    """When the job ended, as its journal has it."""
    events = [event async for event in client.events(job_id, follow=False)]
    [end] = [event for event in events if event.ends_job]  # its changes may be collected later
    return end.at


async def ran_at(client: JobClient, job_id: str) -> float:
    """When its first attempt began."""
    return (await until_event(client, job_id, is_running)).at


def is_running(event: JournalEvent) -> bool:
    """Whether an attempt of the job begins here."""
    return event.data.get("state") == "running"


async def until(client: JobClient, job_id: str, kind: EventType, **data: str) -> None:
    async with asyncio.timeout(60):
        async for event in client.events(job_id):
            assert not event.ends_job, event.data
            if event.type is kind and data.items() <= event.data.items():
                return


async def held(place: Installation) -> list[str]:
    """The places and entries that jobs still hold in Redis."""
    async with connect(place.redis.url) as redis:
        kinds = (
            "leases",
            "deadlines",
            "cancelling",
            "active:*",
            "host:*",
            "awaited:*",
            "approvals",
        )
        return [name for kind in kinds for name in await redis.keys(f"fanout:{kind}")]


def containers_of_job(job_id: str) -> list[str]:
    """The running ones; those that have ended are removed in the background."""
    command = ["docker", "ps", "-q", "--filter", f"name=.sandbox.{job_id}."]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


async def containers_left(job_id: str, within_seconds: float = DYING_SECONDS) -> list[str]:
    """Those that the engine still calls running so long after the death of their processes."""
    look = partial(asyncio.to_thread, containers_of_job, job_id)
    return await _emptied(look, within_seconds)


async def until_prints(client: JobClient, job_id: str) -> None:
    """Wait until a command of the job has printed something."""
    await until_event(client, job_id, lambda event: event.data.get("stream") == "output")


async def let_go(place: Installation, within_seconds: float) -> list[str]:
    """What is left in Redis, folders and the engine after so long, but for a living worker's."""
    return await _emptied(partial(_left, place), within_seconds)


async def _emptied(look: Callable[[], Awaitable[list[str]]], within_seconds: float) -> list[str]:
    clock = asyncio.get_running_loop().time
    ends = clock() + within_seconds
    while (left := await look()) and clock() < ends:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.05)
    return left


async def _left(place: Installation) -> list[str]:
    folders = [path.name for path in (place.folder / "state" / "sandboxes").glob("jobs/*")]
    return await held(place) + folders + await asyncio.to_thread(of_no_living_worker, place)


def of_no_living_worker(place: Installation) -> list[str]:
    """Containers and volumes of jobs, and what else belongs to a worker that is dead.

    That is its containers, and the volumes of sandboxes that it had started ahead.
    """
    if place.environment["FANOUT_SANDBOX__PROVIDER"] != "docker":
        return []
    alive = [
        str(each.process.pid)
        for each in place.workers
        if each.process and each.process.poll() is None
    ]
    listed = []
    labels = '{{.Label "fanout.job"}}|{{.Label "fanout.worker"}}|{{.Label "fanout.warm"}}|'
    for kind, name in ((["ps", "-a"], "{{.Names}} {{.Status}}"), (["volume", "ls"], "{{.Name}}")):
        command = [
            "docker", *kind, "--filter", f"label=fanout.installation={place.identity}",
            "--format", labels + name,
        ]  # fmt: skip
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in answer.splitlines():
            job, worker, warm, shown = line.split("|")
            is_dead = worker.rpartition("-")[2] not in alive
            if job or (is_dead and (warm or kind[0] == "ps")):
                listed.append(shown)
    return listed


def changed(result: JobResult) -> set[str]:
    return {file.path for file in result.files_modified}


@contextmanager
def stopping_place(folder: Path, provider: str, concurrency: int) -> Iterator[Installation]:
    """A worker for all of these jobs, with a model that hangs beside the scripted ones."""
    settings = {
        "FANOUT_SANDBOX__PROVIDER": provider,
        "FANOUT_AGENTS_DIR": str(write_agents(folder, AGENTS)),
    }
    script = write_script(folder, *SCRIPT)
    with (
        model_server() as service,
        installation(folder, script=script, **settings, **environment(service, "key")) as made,
    ):
        service.answers[:] = [HANGS] * 50
        made.start_worker(concurrency=concurrency)
        yield made
