"""The composition root of a worker process: makes its objects from the settings.

What runs the jobs is loaded when the worker has registered; see `execution`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import structlog
from redis.asyncio import Redis

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.configuration.absent_packages import absent
from fanout.orchestrator.configuration.agent_definitions import InvalidAgentDefinition
from fanout.orchestrator.configuration.configuration_file import key_names, secret_variables
from fanout.orchestrator.configuration.log_setup import set_up_logging
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.deep_agent import service_faults
from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.failures import (
    JobFailure,
    LedgerForbidden,
    LedgerReplaced,
    LedgerUnavailable,
)
from fanout.orchestrator.jobs.result import JobResult, Unfinished
from fanout.orchestrator.jobs.store.admission import Admission
from fanout.orchestrator.jobs.store.connection import URGENT_CONNECTIONS, connect
from fanout.orchestrator.jobs.store.fleet_totals import FleetTotals
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.queue import CeleryQueue, queue_of_worker
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter
from fanout.orchestrator.jobs.store.signatures import MessageSigner
from fanout.orchestrator.jobs.totals import Totals
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from fanout.orchestrator.workspace.blobs import BlobStore

from . import sandbox
from .agent.services import JobServices, LiveConfiguration
from .heartbeat import Heartbeats, ShuttingDown
from .host_fitness import HostFitness
from .pool import agent_loop
from .startup import admission_policy, load_worker_settings, startup_error
from .supervisor import EXIT_NOT_ALLOWED, EXIT_UNREACHABLE, EXIT_USAGE, end_hanging
from .upkeep.cancellations import ParkedMessages
from .upkeep.counting import Counting, LoopDelays
from .upkeep.garbage import Garbage
from .upkeep.own_ledger import OwnLedger
from .upkeep.reaper import Reaper
from .upkeep.retention import Retention
from .upkeep.watchdog import CallThreads, Watchdog, release_claims

if TYPE_CHECKING:
    from .attempt.job_runner import Progress
    from .execution import JobExecution


log = structlog.get_logger(__name__)

RESTART_SECONDS = 1.0
"""The pause before background work that failed is started again."""
LEAVING_SECONDS = 0.5
"""The time for informing the ledger that the worker ends, before its registration is removed."""
HANGING_LEASES = 4.0
"""The number of leases for which a thread makes no step until it counts as hanging: a minute."""
REGISTRATION_SECONDS = 6.0
"""How long a registration is valid; it is renewed three times as often."""


async def run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work for ever; an exception is logged, and the work is started again."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("background work failed and is restarted", work=work.__qualname__)
        await asyncio.sleep(RESTART_SECONDS)


class ShutdownRequests:
    """Carries out requests to shut down, which signal handlers make, one after another.

    A handler interrupts its thread anywhere, in another handler too, and must take no lock that may
    be held there: neither the log's nor that of starting a thread. When a parent process ends, for
    example, the kernel sends its child the same signal once for each thread of the parent.

    Args:
        carry_out: What a request is for.
    """

    def __init__(self, carry_out: Callable[[], None]) -> None:
        self._carry_out = carry_out
        self._requests: SimpleQueue[bool] = SimpleQueue()
        """Its `put` may interrupt itself. False ends the thread."""
        self._thread = threading.Thread(target=self._run, name="shutdown", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self) -> None:
        """Make a request, in a signal handler or any thread; returns at once."""
        self._requests.put(True)

    def end(self) -> None:
        """Return when all requests are carried out and the thread has ended."""
        self._requests.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._requests.get():
            self._carry_out()


@cache
def worker() -> WorkerProcess:
    """Return this process's worker, which is made when it is first used.

    Raises:
        SystemExit: The settings are not usable.
    """
    settings, redis_url = load_worker_settings()
    return WorkerProcess(settings, redis_url)


class WorkerProcess:
    """The objects of a worker process, all on its one loop.

    Args:
        settings: The settings of the environment.
        redis_url: The Redis that the parents use.
    """

    def __init__(self, settings: Settings, redis_url: str) -> None:
        set_up_logging(settings.log_level)
        self._settings = settings
        self._redis_url = redis_url
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self.queue = queue_of_worker(settings.worker.queue, self._name)
        """The queue of this worker alone, in addition to those that it shares."""
        self._host = socket.gethostname()
        self._sandbox = self._why_local = ""
        self._model_faults: dict[str, str] = {}
        self._disk_free_bytes = 0
        self._protection = {"user": "root" if os.geteuid() == 0 else "unprivileged"}
        self._concurrency = settings.worker.concurrency
        self._draining = self._paused = False
        self._leaving: list[Future[None]] = []
        self._shutdown = ShutdownRequests(self._release_jobs)
        self.exit_code = 0
        """The exit code of the process, when it ends in order."""
        self._started_at: int | None = None
        """The time of the start by the Redis server's clock; None until it was read."""
        self._background: list[asyncio.Task[None]] = []
        self._execution: JobExecution | None = None
        """None until it is loaded."""
        self._is_warm = asyncio.Event()
        self._totals = Totals()
        self.parked = ParkedMessages()
        self.signer = MessageSigner(settings.queue.secrets)
        self.agents = agent_loop()

    @property
    def obeys_commands(self) -> bool:
        """Whether Celery's commands may change this worker and its jobs."""
        return self._settings.worker.remote_control

    @property
    def takes_jobs(self) -> bool:
        """Whether it takes messages from the queue; may be read in any thread.

        A process that has not started as a worker sends Celery's commands, and takes their answers.
        """
        return not self._background or not self._unfit

    @property
    def farewell(self) -> str:
        """What becomes of the running jobs when this worker stops, in one line."""
        jobs, options = len(self._heartbeats), self._settings.worker
        if options.drain:
            return f"finishes its {jobs} jobs, then ends"
        return f"hands its {jobs} jobs over, ends within {options.shutdown_grace_seconds:g} s"

    def open(self) -> None:
        """Make the objects, and check that the sandbox provider is usable.

        Raises:
            SystemExit: The worker cannot start; the reason is printed to stderr.
        """
        self._shutdown.start()
        try:
            self.agents.run(self._open())
        except (sandbox.EngineForbidden, LedgerForbidden) as error:
            raise startup_error(str(error), EXIT_NOT_ALLOWED) from None
        except JobFailure as error:
            raise startup_error(str(error), EXIT_UNREACHABLE) from None
        except InvalidAgentDefinition as error:
            raise startup_error(str(error), EXIT_USAGE) from None

    def accept_jobs(self) -> None:
        """Register the worker, so that jobs are sent to it, and start its background loops."""
        self.agents.run(self._start_background())

    def release_jobs(self) -> None:
        """Release all jobs without using up an attempt; after the grace time the process exits.

        With the option `drain` it exits after its last job; on a second call it releases them.
        Signal handlers may call it.
        """
        self._shutdown.add()

    def _release_jobs(self) -> None:
        asked_before, self._draining = self._draining, True
        self._leaving.append(asyncio.run_coroutine_threadsafe(self._register(), self.agents.loop))
        if self._settings.worker.drain and not asked_before:
            log.info("worker finishes its jobs, then exits", jobs=len(self._heartbeats))
            return
        grace = self._settings.worker.shutdown_grace_seconds
        killer = threading.Timer(grace, self._exit_without_waiting)
        killer.daemon = True
        killer.start()
        self.agents.loop.call_soon_threadsafe(
            self._heartbeats.stop_all, ShuttingDown("Its worker stops.")
        )

    def change_capacity(
        self, *, concurrency: int | None = None, paused: bool | None = None
    ) -> None:
        """Register another number of concurrent jobs, or that the worker takes none for now."""
        self._concurrency = concurrency or self._concurrency
        self._paused = self._paused if paused is None else paused
        asyncio.run_coroutine_threadsafe(self._register(), self.agents.loop)

    @property
    def ledger(self) -> Ledger:
        """The ledger, for work on `agents`."""
        return self._ledger

    def close(self) -> None:
        """Stop the background loops and close all connections."""
        self._watchdog.stop()
        self._shutdown.end()
        wait(self._leaving, LEAVING_SECONDS)  # or it registers after the end
        self.agents.run(self._close())
        self.agents.stop()

    async def run_job(
        self, job_id: str, progress: Progress, dispatch: str, sent_at: object = None
    ) -> JobResult | Unfinished:
        """Run the next attempt of a job after the warm-up; see `JobRunner` for the arguments."""
        if not self._is_warm.is_set():
            await self._is_warm.wait()
            if self._draining:
                # Nothing would stop it; the ledger dispatches it again.
                return Unfinished("its worker ends", has_run=False)
        assert self._execution is not None  # noqa: S101 - it is what the warm-up loads
        return await self._execution.runner.run(job_id, progress, dispatch, sent_at)

    async def _open(self) -> None:
        settings = self._settings
        keys = Keys(settings.redis_prefix)
        self._live = LiveConfiguration(settings.agents_dir, lambda: load_settings().secrets)
        self._redis: Redis = connect(self._redis_url)
        self._urgent: Redis = connect(self._redis_url, URGENT_CONNECTIONS)
        self._urgent_ledger = Ledger(self._urgent, keys)
        self._ledger = Ledger(self._redis, keys)
        self._journal = Journal(self._redis, keys)
        self._queue = CeleryQueue(
            self._redis_url, keys.prefix, settings.worker.queue, settings.queue.secrets
        )
        self._own_ledger = await OwnLedger.of(self._urgent_ledger)
        self._blobs = BlobStore(settings.blobs, timeout_seconds=settings.blobs_timeout_seconds)
        self._provider = await self._open_provider()
        self._fitness = HostFitness(self._provider, self._rehearsal(), self._tell_fitness)
        self._admission = Admission(self._ledger, self._queue)
        self._services = self._job_services()
        self._rate_limiter = RedisRateLimiter(self._redis, keys, settings.models)
        self._heartbeats = Heartbeats(self._urgent_ledger, settings.worker.lease_seconds)
        self._loop_delays = LoopDelays(lambda: bool(len(self._heartbeats)), self._totals)
        self._counting = Counting(FleetTotals(self._redis, keys), self._totals, self._name)
        self._reaper = Reaper(
            self._ledger,
            self._admission,
            self._provider,
            self._own_ledger,
            interval_seconds=settings.worker.reap_interval_seconds,
        )
        self._retention = Retention(
            self._ledger,
            self._blobs,
            settings.retention_seconds,
            settings.storage,
            settings.tenants,
        )
        threads = CallThreads(settings.worker.lease_seconds * HANGING_LEASES)
        self.agents.loop.set_default_executor(threads)
        self._watchdog = Watchdog(
            self.agents.loop,
            self.agents.thread_id,
            claims=lambda: self._heartbeats.claims,
            release_claims=partial(release_claims, self._redis_url, keys),
            lease_seconds=settings.worker.lease_seconds,
            threads=threads,
            end_process=end_hanging,
        )
        self._garbage = Garbage(running=lambda: len(self._heartbeats))

    def _job_services(self) -> JobServices:
        settings = self._settings
        return JobServices(
            ledger=self._ledger,
            journal=self._journal,
            blobs=self._blobs,
            definitions=self._live.definitions,
            refresh=self._live.refresh,
            defaults=settings.limits.for_jobs(),
            bounds=settings.limits.tree_bounds(),
            approvers=settings.approvers,
            secrets=self._live.secrets,
            ceilings=settings.ceilings,
            totals=self._totals,
        )

    async def _open_provider(self) -> sandbox.SandboxProvider:
        """Return the configured provider; without its engine there is none in its place.

        Raises:
            SandboxFailure: The engine cannot run sandboxes.
        """
        options = self._settings.sandbox
        self._sandbox = options.provider
        installation = self._own_ledger.installation
        if options.provider == "local":
            self._why_local = "FANOUT_SANDBOX__PROVIDER is local."
            folder = self._settings.state_dir / "sandboxes"
            return sandbox.LocalProvider(self._blobs.fetch, root=folder, installation=installation)
        docker = docker_provider(
            self._settings, self._blobs.fetch, self._own_ledger, self._name, options.warm
        )
        engine = await docker.probe(options.image)
        self._host = engine.id
        guard = "proxy" if engine.is_guarded else "socket"
        self._protection |= {"engine": guard, **await docker.protection()}
        return docker

    def _rehearsal(self) -> sandbox.SandboxSpec:
        """Return a sandbox as it is for a job that names no limits and no files."""
        options = self._settings
        return sandbox.SandboxSpec(
            job_id="", attempt=1, image=options.sandbox.image, limits=options.limits.for_jobs()
        )

    async def _tell_fitness(self) -> None:
        """Register as unfit or fit at once; give back the jobs that wait for a sandbox."""
        await self._register()
        if self._unfit and self._execution is not None:
            self._execution.runner.give_back_openings(self._unfit)

    @property
    def _unfit(self) -> str:
        """Why this worker takes no jobs; empty when it is fit."""
        return self._watchdog.unfit or self._fitness.unfit

    def info(self) -> WorkerInfo:
        """Return this worker's registration, as it is now."""
        return WorkerInfo(
            name=self._name,
            host=self._host,
            concurrency=self._concurrency,
            running=len(self._heartbeats),
            sandbox=self._sandbox,
            host_limit=self._settings.limits.host_jobs or 0,
            draining=self._draining or self._paused or bool(self._unfit),
            unfit=self._unfit,
            hanging_threads=self._watchdog.hanging_threads,
            why_local=self._why_local,
            wire_oldest=versions.WIRE_OLDEST,
            wire_newest=versions.WIRE_NEWEST,
            agents=tuple(self._live.definitions),
            definitions=self._live.definitions.digests(),
            pool=self._settings.worker.pool,
            queue=self.queue,
            keys=(*key_names(), *secret_variables(self._live.secrets)),
            protection=self._protection,
            loop_delays=self._loop_delays.histogram(),
            model=self._settings.model,
            model_faults=self._model_faults,
            disk_free_bytes=self._disk_free_bytes,
        )

    async def _start_background(self) -> None:
        loops = (
            self._heartbeats.run,
            self._fitness.run,
            self._reaper.run,
            self._retention.run,
            self._garbage.run,
            self._loop_delays.run,
            self._counting.run,
            self._keep_registered,
        )
        await self._register()
        self._background = [asyncio.create_task(run_forever(loop)) for loop in loops]
        self._background.append(asyncio.create_task(self._begin_execution()))
        log.info("worker ready", worker=self._name, sandbox=self._sandbox)

    async def _begin_execution(self) -> None:
        """Load what runs jobs, while the first ones are on their way here."""
        try:
            self._execution = await self._load_execution()
        except Exception:
            log.exception("worker stops: what runs its jobs cannot be loaded")
            self._draining = True  # those that wait go on elsewhere
            self._is_warm.set()
            self._stop(1)
            return
        for loop in self._execution.loops:
            self._background.append(asyncio.create_task(run_forever(loop)))
        models = {one.model for one in self._live.definitions.values()}
        with absent("grpc"):  # 11 MiB: ADK loads a client of A2A, and no worker speaks it over gRPC
            await self._execution.warm_up({self._settings.model, *filter(None, models)})
        self._garbage.exempt_loaded()
        self._watchdog.start()  # the warm-up blocks the loop, which is then a fault
        self._is_warm.set()

    async def _load_execution(self) -> JobExecution:
        with self._garbage.exempt_import(), absent("rich"):  # HTTPX has a command line, with it
            module = await asyncio.to_thread(import_module, "fanout.workers.execution")
        kind: type[JobExecution] = module.JobExecution
        return kind(
            self._settings,
            self._services,
            urgent_ledger=self._urgent_ledger,
            own_ledger=self._own_ledger,
            admission=self._admission,
            provider=self._provider,
            heartbeats=self._heartbeats,
            fitness=self._fitness,
            rate_limiter=self._rate_limiter,
            on_cancelled=self.parked.cancelled,
            registration=self.info,
        )

    async def _register(self) -> None:
        try:
            await self._own_ledger.verify()
            self._started_at = self._started_at or await self._ledger.now_ms()
            await self._live.refresh()
            self._model_faults = await asyncio.to_thread(service_faults)
            self._disk_free_bytes = await asyncio.to_thread(_free_bytes, self._settings.state_dir)
            policy = admission_policy(self._settings, self._live.definitions)
            has_room = await self._urgent_ledger.register(
                self.info(), REGISTRATION_SECONDS, policy, self._started_at
            )
            if has_room:
                with contextlib.suppress(LedgerUnavailable):  # the reaper dispatches
                    await self._admission.pump()
        except LedgerReplaced as error:
            self._stop_without_ledger(error)
        except JobFailure as error:
            log.warning("worker not registered", error=str(error))

    def _stop_without_ledger(self, error: LedgerReplaced) -> None:
        """Stop this process: all that it made belongs to a ledger that is not there any more."""
        if not self.exit_code:
            log.error("worker stops", error=str(error))
            self._stop(EXIT_UNREACHABLE)

    def _stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        os.kill(os.getpid(), signal.SIGTERM)

    async def _keep_registered(self) -> None:
        while True:
            await self._register()
            await asyncio.sleep(REGISTRATION_SECONDS / 3)

    async def _close(self) -> None:
        await cancel_and_wait(*self._background)
        try:
            await self._urgent_ledger.register(self.info(), 0)
        except JobFailure as error:
            log.warning("worker not unregistered", error=str(error))
        if self._execution is not None:
            await self._execution.runner.settle()
        await self._counting.store()
        await self._provider.close()
        await self._journal.close()
        await self._queue.close()
        await asyncio.gather(self._redis.aclose(), self._urgent.aclose())

    def _exit_without_waiting(self) -> None:
        jobs = len(self._heartbeats)
        log.error("grace time is over, worker exits at once", jobs=jobs)
        # Without jobs only sandboxes remain to be removed, which the next worker does.
        os._exit(1 if jobs else self.exit_code)


def docker_provider(
    settings: Settings,
    snapshots: sandbox.SnapshotSource,
    own_ledger: OwnLedger,
    worker: str,
    warm: int | None,
) -> sandbox.DockerProvider:
    """Return the provider; there is no I/O here.

    Args:
        settings: Those of the worker.
        snapshots: Fetches what jobs start from.
        own_ledger: Says whose the containers are, and which workers live.
        worker: The name of this process.
        warm: How many sandboxes may be started ahead, see `SandboxSettings.warm`.
    """
    options = settings.sandbox
    return sandbox.DockerProvider(
        snapshots,
        installation=own_ledger.installation,
        worker=worker,
        runtime=options.runtime,
        warm=warm,
        processes=max(1, settings.worker.processes),
        living_workers=own_ledger.living_workers,
        ca_file=options.ca_file,
        disk_quota=options.disk_quota,
        disk_reserve_bytes=options.disk_reserve_bytes,
        first_uid=options.first_uid,
    )


def _free_bytes(folder: Path) -> int:
    """Return the free space of a folder's disk; 0 where the folder is not there yet."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
