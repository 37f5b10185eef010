"""The two halves of a job in one process: ledger, queue and runner, with faults at every arrow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from redis.asyncio import Redis

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinitions,
    load_agent_definitions,
)
from fanout.orchestrator.configuration.settings import LimitSettings
from fanout.orchestrator.configuration.tool_settings import WebSettings
from fanout.orchestrator.deep_agent.backends.protocol import Execution, OutputSink
from fanout.orchestrator.extras import ToolMaker
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, TreeBounds
from fanout.orchestrator.jobs.store.admission import Admission
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter
from fanout.orchestrator.jobs.totals import Totals
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.agent.activity import Activities
from fanout.workers.agent.services import JobServices
from fanout.workers.agent.subagent import SubagentFactory
from fanout.workers.attempt.changes import ChangeCollections
from fanout.workers.attempt.environments import JobEnvironments
from fanout.workers.attempt.job_runner import JobRunner
from fanout.workers.extras import CodingAgentJob, RemoteAgent
from fanout.workers.heartbeat import Heartbeats
from fanout.workers.host_fitness import HostFitness
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, IsLive, Sandbox, SandboxSpec, nobody
from tests.builders import make_worker
from tests.queue import InMemoryQueue

LEASE_SECONDS = 5.0
"""Short enough to wait for its lapse, long enough for a machine that runs other tests."""
LONG_LEASE_SECONDS = 30.0
"""For tests that let leases lapse by hand: a busy machine must not do it for them."""


class FaultySandbox:
    """A sandbox that can die, and whose changes can take as long as the test wants."""

    def __init__(self, sandbox: Sandbox, provider: FaultyProvider) -> None:
        self._sandbox = sandbox
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        result = await self._sandbox.run(command, on_output)
        if self._provider.die_after_command:
            raise self._provider.die_after_command.pop(0)
        return result

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        wanted = Command(
            argv=command, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes
        )
        return await self.run(wanted, on_output)

    async def changes(self) -> IO[bytes]:
        self._provider.collecting.set()
        await self._provider.changes_may_go_on.wait()
        return await self._sandbox.changes()


class FaultyProvider:
    """Local sandboxes whose opening fails on demand: before anything was made, or after."""

    environments = None

    def __init__(self, inner: LocalProvider) -> None:
        self._inner = inner
        self.fail_before: list[Exception] = []
        self.fail_after: list[Exception] = []
        self.die_after_command: list[Exception] = []
        self.away: Exception | None = None
        """Why no sandbox can be opened, whichever it is."""
        self.lost: set[str] = set()
        """The jobs whose sandbox ended with what the host runs them by."""
        self.opened = 0
        self.opening, self.may_open = asyncio.Event(), asyncio.Event()
        self.collecting, self.changes_may_go_on = asyncio.Event(), asyncio.Event()
        self.may_open.set()
        self.changes_may_go_on.set()

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.opened += 1
        self.opening.set()
        await self.pulse()
        if self.fail_before:
            raise self.fail_before.pop(0)
        await self.may_open.wait()
        async with self._inner.open(spec) as sandbox:
            if self.fail_after:
                raise self.fail_after.pop(0)
            yield FaultySandbox(sandbox, self)

    def expect(self, spec: SandboxSpec) -> contextlib.AbstractContextManager[None]:
        return self._inner.expect(spec)

    def expect_next(self, specs: Sequence[SandboxSpec]) -> None:
        self._inner.expect_next(specs)

    async def home(self, job_id: str) -> str:
        return await self._inner.home(job_id)

    async def pulse(self) -> None:
        if self.away is not None:
            raise self.away

    async def rehearse(self, spec: SandboxSpec) -> None:
        await self.pulse()
        await self._inner.rehearse(spec)

    def was_lost(self, job_id: str) -> bool:
        return job_id in self.lost

    async def discard(self, job_id: str) -> None:
        await self._inner.discard(job_id)

    async def collect_changes(self, job_id: str) -> IO[bytes]:
        return await self._inner.collect_changes(job_id)

    async def reap(self, is_live: IsLive, keeps_files: IsLive = nobody) -> int:
        return await self._inner.reap(is_live, keeps_files)

    async def close(self) -> None:
        await self._inner.close()


class Bench:
    """One installation in one process."""

    def __init__(self, redis: Redis, folder: Path, script: Path, lease_seconds: float) -> None:
        self.redis, self.keys = redis, Keys()
        self.ledger = Ledger(redis, Keys())
        self.journal = Journal(redis, Keys())
        self.blobs = BlobStore((folder / "blobs").as_uri())
        self.sandboxes = folder / "sandboxes"
        self.provider = FaultyProvider(
            LocalProvider(self.blobs.fetch, root=self.sandboxes, installation="bench")
        )
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        self.queue = InMemoryQueue(self.arrived.put)
        self.admission = Admission(self.ledger, self.queue)
        self.worker = make_worker()
        self.heartbeats = Heartbeats(self.ledger, lease_seconds)
        rehearsal = SandboxSpec(
            job_id="", attempt=1, image="none", limits=LimitSettings().for_jobs()
        )
        self.fitness_changed = asyncio.Event()
        self.fitness = HostFitness(self.provider, rehearsal, self._on_fitness)
        self.shown: list[str] = []
        self._model = f"scripted:{script}"
        self._rate_limiter = RedisRateLimiter(redis, Keys(), {})
        self._lease_seconds = lease_seconds
        self._definitions = load_agent_definitions()
        self._checkpoint_seconds = 0.0
        self.uncollected = asyncio.Event()
        self.runner = self._runner()

    def configure(
        self,
        definitions: AgentDefinitions | None = None,
        checkpoint_seconds: float | None = None,
    ) -> None:
        """Let later attempts know other agents, or take checkpoints at another interval."""
        self._definitions = self._definitions if definitions is None else definitions
        if checkpoint_seconds is not None:
            self._checkpoint_seconds = checkpoint_seconds
        self.runner = self._runner()

    def _runner(self) -> JobRunner:
        services = JobServices(
            ledger=self.ledger,
            journal=self.journal,
            blobs=self.blobs,
            definitions=self._definitions,
            defaults=LimitSettings().for_jobs(),
            bounds=TreeBounds(),
        )
        return JobRunner(
            services,
            admission=self.admission,
            provider=self.provider,
            heartbeats=self.heartbeats,
            fitness=self.fitness,
            environments=JobEnvironments(services, self.provider, "none"),
            activities=Activities(self.ledger, Totals()),
            subagents=SubagentFactory(
                services=services,
                default_model=self._model,
                rate_limiter=self._rate_limiter,
                create_remote=RemoteAgent,
                make_tools=ToolMaker(WebSettings(), {}).make,
                create_coding=CodingAgentJob,
                checkpoint_seconds=self._checkpoint_seconds,
                max_result_tokens=8_000,
            ),
            collections=ChangeCollections(self.blobs),
            collect_later=self.uncollected.set,
            on_claim=lambda: None,
            default_image="none",
            lease_seconds=self._lease_seconds,
            full_wait_seconds=LONG_LEASE_SECONDS,
            registration=self.registration,
        )

    async def tree_ids(self, root_id: str) -> list[str]:
        """The ids of a tree's jobs, oldest first."""
        return [one async for ids in self.ledger.tree_steps(root_id) for one in ids]

    def registration(self) -> WorkerInfo:
        """The worker as it registers itself now."""
        unfit = self.fitness.unfit
        return replace(self.worker, draining=bool(unfit), unfit=unfit)

    async def register(self) -> None:
        """Register the worker as it is now, for long."""
        await self.ledger.register(self.registration(), 600)

    async def _on_fitness(self) -> None:
        await self.register()
        self.fitness_changed.set()

    async def look(self) -> None:
        """Let the worker look until its host opens sandboxes, and dispatch what it can run."""
        self.fitness_changed.clear()
        looking = asyncio.create_task(self.fitness.run())
        await self.fitness_changed.wait()
        await cancel_and_wait(looking)
        await self.admission.pump()

    async def rest(self, job_id: str) -> None:
        """End a job's rest now."""
        await self.redis.zadd(self.keys.leases, {job_id: 1})
        await self.ledger.reap()
        await self.admission.pump()

    async def submit(self, spec: JobSpec) -> str:
        (job_id,) = await self.ledger.submit([spec])
        await self.admission.pump()
        return job_id

    async def work_off(self) -> list[JobResult | None]:
        """Run what the queue delivers, one after another, until it delivers nothing more."""
        results = []
        while not self.arrived.empty():
            results.append(await self.run(self.arrived.get_nowait()))
        return results

    async def run(self, job_id: str) -> JobResult | None:
        result = await self.runner.run(job_id, self.shown.append)
        await self.runner.settle()
        return result if isinstance(result, JobResult) else None

    async def ended(self, job_id: str) -> JobResult:
        result = await self.ledger.result(job_id)
        assert result is not None, (await self.ledger.get(job_id)).state
        return result

    async def states(self, job_id: str) -> list[str]:
        events = await self.journal.read(job_id)
        return [str(event.data["state"]) for event in events if event.type is EventType.JOB_STATE]

    def left_behind(self) -> list[str]:
        return sorted(path.name for path in self.sandboxes.glob("jobs/*"))


@contextlib.asynccontextmanager
async def opened_bench(
    redis: Redis, folder: Path, script: Path, lease_seconds: float = LEASE_SECONDS
) -> AsyncIterator[Bench]:
    bench = await asyncio.to_thread(Bench, redis, folder, script, lease_seconds)
    await bench.ledger.register(bench.worker, 600)
    beating = asyncio.create_task(bench.heartbeats.run())
    try:
        yield bench
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await bench.journal.close()
        await bench.provider.close()
