"""What `fanout top` shows of an installation: hosts, workers, models, queues, budgets, jobs.

It is read from Redis or, with a key of the service, from `GET /v1/fleet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from ..jobs.budget import BudgetState
from ..jobs.state import Activity, JobRecord, JobState
from ..jobs.store.model_states import ClosedModel
from ..jobs.worker_info import Fitness, WorkerLoad
from ..shortening import one_line
from .job_pages import JobFilter
from .job_reader import JobReader

MAX_JOBS = 100
"""The most running jobs that are shown: more than a screen has lines."""
MAX_ACTIVE = 300
"""The most running jobs of a tenant among which those of one owner are searched."""
MAX_QUEUED = 500
"""The most queued jobs of a caller that are read, the newest: at 30 µs each a hundredth of a
second."""
MAX_WAITING = 500
"""The most waiting jobs of a caller of which the models are read that they wait for, the newest."""
MAX_SHOWN = 200
"""The most workers, hosts and queues that are shown, those that need attention first."""
TITLE_CHARACTERS = 200
"""The longest part of a job's description that is shown: as much as a wide terminal shows."""


class _Shown(BaseModel):
    """A part of the view; fields of a newer release are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ShownHost(_Shown):
    """A host with living workers."""

    name: str
    workers: int = 0
    fit: int = 0
    draining: int = 0
    unfit: int = 0
    slots: int = 0
    busy: int = 0


class ShownWorker(_Shown):
    """A living worker."""

    name: str
    host: str = ""
    state: str = ""
    """`fit`, `draining` or `unfit`."""
    slots: int = 0
    busy: int = 0
    sandbox: str = ""
    why: str = ""
    """Why it is unfit."""


class ShownQueue(_Shown):
    """The queued jobs of a class of a tenant."""

    tenant: str
    job_class: str
    """`<agent>:<wire version>`, with a pool `<agent>@<pool>:<wire version>`."""
    jobs: int
    """The number of jobs, at least: in queues with thousands of trees not all jobs are counted."""
    oldest_seconds: float
    """How long the oldest of those that are next in turn has waited."""


class ShownJob(_Shown):
    """A job that runs, or is on its way to a worker."""

    id: str
    state: str
    agent: str = ""
    tenant: str = ""
    owner: str = ""
    attempt: int = 0
    worker: str | None = None
    submitted_at: float = 0.0
    """The time of submission in seconds since the epoch, like all times."""
    started_at: float | None = None
    description: str = ""
    activity: Activity | None = None
    last_event: str | None = None


class ShownModel(_Shown):
    """A model that is not to be asked now, and for which jobs may wait."""

    name: str
    state: str
    """`limited`, `exhausted`, `away` or `refused`."""
    why: str
    until: float
    """When it is tried again, in seconds since the epoch."""
    waiting: int
    """How many jobs wait for it; for the owner of jobs, how many of the owner's."""


class ShownBudget(_Shown):
    """What is used of the budget of a tree of which jobs run."""

    root_id: str
    budget: BudgetState


class FleetView(_Shown):
    """An installation at one moment. Fields are None where its reader may not know them."""

    at: float
    """The time in seconds since the epoch, by Redis's clock."""
    hosts: tuple[ShownHost, ...] | None = None
    workers: tuple[ShownWorker, ...] | None = None
    """Workers, `MAX_SHOWN` at most; `hosts` counts all."""
    host_count: int | None = None
    worker_states: dict[str, int] | None = None
    slots: int | None = None
    busy: int | None = None
    free: int | None = None
    """The slots of fit workers that have no job."""
    models: tuple[ShownModel, ...] | None = None
    """The models that are not open, `MAX_SHOWN` at most; for the owner of jobs, those for which the
    owner's jobs wait."""
    budgets: tuple[ShownBudget, ...] = ()
    """Those of the trees of the jobs in `jobs`, where there is a limit of tokens or money."""
    queues: tuple[ShownQueue, ...] = ()
    jobs: tuple[ShownJob, ...] = ()
    tokens_per_minute: int | None = None
    cost_usd_per_minute: float | None = None
    redis_bytes: int | None = None
    redis_limit_bytes: int | None = None
    """The limit of Redis's memory; 0: none."""


async def whole_fleet(reader: JobReader) -> FleetView:
    """Return all of an installation, for its operator.

    Args:
        reader: The connection.

    Raises:
        LedgerUnavailable: Redis does not respond.
    """
    fleet = reader.fleet
    workers = await fleet.workers()
    queues = await fleet.queues()
    records = await reader.records(await fleet.running(MAX_JOBS))
    memory, spending = await reader.memory(), await reader.totals.spending()
    hosts, closed = _hosts(workers), await reader.closed_models()
    return FleetView(
        at=await reader.now(),
        hosts=tuple(hosts[:MAX_SHOWN]),
        workers=tuple(map(_worker, sorted(workers, key=_urgency)[:MAX_SHOWN])),
        host_count=len(hosts),
        worker_states={one: sum(w.fitness is one for w in workers) for one in Fitness},
        slots=sum(worker.concurrency for worker in workers),
        busy=sum(worker.running for worker in workers),
        free=sum(worker.free for worker in workers),
        models=_models(closed),
        budgets=await _budgets(reader, records),
        queues=tuple(ShownQueue(**one._asdict()) for one in queues[:MAX_SHOWN]),
        jobs=_jobs(records),
        tokens_per_minute=spending.tokens,
        cost_usd_per_minute=spending.cost_usd,
        redis_bytes=memory.used_bytes,
        redis_limit_bytes=memory.limit_bytes,
    )


async def own_fleet(reader: JobReader, tenant: str | None, owner: str | None) -> FleetView:
    """Return the view for the owner of jobs: the jobs, but not the workers.

    Args:
        reader: The connection.
        tenant: Only jobs of this tenant; None: of all.
        owner: Only jobs of this owner; None: of all.

    Raises:
        LedgerUnavailable: Redis does not respond.
    """
    wanted = JobFilter(tenant=tenant, owner=owner, states={JobState.QUEUED})
    at = await reader.now()
    parked = replace(wanted, states={JobState.WAITING})
    queued = (await reader.pages.page(wanted, None, MAX_QUEUED)).records
    active = await reader.records(await reader.fleet.running(MAX_ACTIVE, tenant))
    running = [one for one in active if tenant is None or owner in (None, one.owner)]
    jobs = tuple(one.model_copy(update={"worker": None}) for one in _jobs(running))
    waiting = (await reader.pages.page(parked, None, MAX_WAITING)).records
    return FleetView(
        at=at,
        models=_models(await reader.awaited_models([*queued, *waiting])),
        budgets=await _budgets(reader, running[:MAX_JOBS]),
        queues=_list_queues(queued, at),
        jobs=jobs[:MAX_JOBS],
    )


def _hosts(workers: Iterable[WorkerLoad]) -> list[ShownHost]:
    by_name: dict[str, list[WorkerLoad]] = {}
    for worker in workers:
        by_name.setdefault(worker.host, []).append(worker)
    hosts = [
        ShownHost(
            name=name,
            workers=len(some),
            **{str(one): sum(worker.fitness is one for worker in some) for one in Fitness},
            slots=sum(worker.concurrency for worker in some),
            busy=sum(worker.running for worker in some),
        )
        for name, some in by_name.items()
    ]
    return sorted(hosts, key=lambda one: (-one.unfit, -one.draining, -one.busy, one.name))


def _urgency(worker: WorkerLoad) -> tuple[int, int, str]:
    """Return the sort key of workers: unfit ones first, then draining ones, then busy ones."""
    order = (Fitness.UNFIT, Fitness.DRAINING, Fitness.FIT)
    return order.index(worker.fitness), -worker.running, worker.name


def _worker(worker: WorkerLoad) -> ShownWorker:
    return ShownWorker(
        name=worker.name,
        host=worker.host,
        state=worker.fitness,
        slots=worker.concurrency,
        busy=worker.running,
        sandbox=worker.sandbox,
        why=worker.unfit,
    )


def _models(closed: Sequence[ClosedModel]) -> tuple[ShownModel, ...]:
    return tuple(
        ShownModel(
            name=one.name, state=one.state, why=one.why, until=one.until, waiting=one.waiting
        )
        for one in closed[:MAX_SHOWN]
    )


async def _budgets(reader: JobReader, records: Iterable[JobRecord]) -> tuple[ShownBudget, ...]:
    """Return the budgets of these jobs' trees, those first of which least is left."""
    roots = sorted({one.root_id for one in records})
    found = zip(roots, await reader.budgets(roots), strict=True)
    limited = [ShownBudget(root_id=id_, budget=one) for id_, one in found if one.if_limited()]
    return tuple(sorted(limited, key=lambda one: one.budget.left_part))


def _jobs(records: Iterable[JobRecord]) -> tuple[ShownJob, ...]:
    """Return the jobs that run, the longest first, then those that are on their way to a worker."""
    shown = (JobState.RUNNING, JobState.QUEUED)
    found = [record for record in records if record.state in shown]
    found.sort(key=lambda one: (one.state is JobState.QUEUED, one.started_at or one.submitted_at))
    return tuple(
        ShownJob(
            id=record.id,
            state=record.state,
            agent=record.agent,
            tenant=record.tenant,
            owner=record.owner,
            attempt=record.attempt,
            worker=record.worker,
            submitted_at=record.submitted_at,
            started_at=record.started_at,
            description=one_line(record.description, TITLE_CHARACTERS),
            activity=record.activity,
            last_event=record.last_event,
        )
        for record in found
    )


def _list_queues(queued: Sequence[JobRecord], now: float) -> tuple[ShownQueue, ...]:
    groups: dict[tuple[str, str], list[JobRecord]] = {}
    for record in queued:
        groups.setdefault((record.tenant, f"{record.agent}:{record.wire}"), []).append(record)
    queues = [
        ShownQueue(
            tenant=tenant,
            job_class=job_class,
            jobs=len(jobs),
            oldest_seconds=max(0.0, now - min(one.submitted_at for one in jobs)),
        )
        for (tenant, job_class), jobs in groups.items()
    ]
    return tuple(sorted(queues, key=lambda one: -one.oldest_seconds)[:MAX_SHOWN])
