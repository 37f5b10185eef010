"""Warm sandboxes: started ahead for jobs that will probably want them, each adopted by one job.

A warm sandbox is prepared under an id of its own. A job adopts it by one step of the steward, after
which its files are the job's, also for other workers and after a crash. None is used twice.

Which are wanted soon is seen from running jobs that have none yet and from queued ones; agents
whose jobs seldom use theirs get none ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from asyncio import get_running_loop
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait, uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure

from ..protocol import SandboxSpec
from .starts import (
    Container,
    ContainerStarts,
    Owner,
    Shape,
    Started,
    StartGate,
)
from .steward_client import Steward

_LIKELY = 0.5
"""The least share of jobs that use theirs: below, starting ahead costs more than it saves."""
_NEWEST_SHARE = 0.2
"""The weight of the newest job: four in a row that used none stop the starts for their agent."""
_MOST_AGENTS = 256
"""Remembered: more than an installation defines."""
EXPECTED_SECONDS = 60.0
"""How long a job is expected to want its sandbox soon: longer than most answers of a model. An idle
container takes some ten MB of its host."""
WARM_PER_CORE = 4
"""The warm sandboxes for each of the engine's cores, unless a setting gives a number: they start
within a second, and take some fifty MB together."""
IDLE_SECONDS = 60.0
"""How long a warm sandbox is kept that nobody expects any more: the next job of a tree comes within
seconds, and memory is others'."""
RENAME_SECONDS = 2.0
"""The time from an adoption to the container's new name, for people: most have no time to look at
one that is closed before, and the engine writes it to its disk."""
_ALIVE_SECONDS = 0.5
"""How long a warm sandbox may take to show that it is alive; it takes a millisecond."""
_FAILURE_PAUSE_SECONDS = 10.0
"""Without starts ahead after one that failed: jobs find out themselves what is wrong."""

log = structlog.get_logger(__name__)


class Habits:
    """The share of the jobs of each agent that opened the sandbox that was expected for them."""

    def __init__(self) -> None:
        self._shares: OrderedDict[str, float] = OrderedDict()

    def is_likely(self, agent: str) -> bool:
        """Return whether a job of this agent probably uses a sandbox; a new agent's does."""
        return self._shares.get(agent, 1.0) >= _LIKELY

    def record(self, agent: str, *, used: bool) -> None:
        """Record whether a job used the sandbox that was expected for it."""
        share = self._shares.pop(agent, 1.0)
        self._shares[agent] = share + _NEWEST_SHARE * (used - share)
        if len(self._shares) > _MOST_AGENTS:
            self._shares.popitem(last=False)


@dataclass(frozen=True)
class _Wish:
    """A sandbox that a job of an agent wants."""

    agent: str
    shape: Shape

    @classmethod
    def of(cls, spec: SandboxSpec) -> _Wish:
        return cls(spec.agent, Shape.of(spec))


@dataclass(eq=False)
class _Expectation:
    wish: _Wish
    counts: bool = True
    """It has not lasted too long."""


class Demand:
    """The sandboxes that are wanted soon, by shape.

    Args:
        on_more: called when it has grown.
    """

    def __init__(self, on_more: Callable[[], None]) -> None:
        self._on_more = on_more
        self._habits = Habits()
        self._expected: dict[str, _Expectation] = {}
        self._next: dict[str, _Wish] = {}
        """The next jobs, in the order in which they will probably be dispatched."""
        self._wanted: Counter[_Wish] = Counter()

    @contextlib.contextmanager
    def expect(self, spec: SandboxSpec) -> Iterator[None]:
        """Expect that a job wants a sandbox, as long as the context is open."""
        job_id = spec.job_id
        self._note_dispatch(job_id)
        expectation = self._expected[job_id] = _Expectation(_Wish.of(spec))
        self._wanted[expectation.wish] += 1
        lapse = get_running_loop().call_later(EXPECTED_SECONDS, self._discount, expectation)
        self._on_more()
        try:
            yield
        finally:
            lapse.cancel()
            if self._expected.get(job_id) is expectation:
                del self._expected[job_id]
                self._discount(expectation)
                self._habits.record(expectation.wish.agent, used=False)

    def note_opening(self, job_id: str) -> None:
        """Take a job's sandbox from the demand: the job opens it."""
        if (expectation := self._expected.pop(job_id, None)) is not None:
            self._discount(expectation)
            self._habits.record(expectation.wish.agent, used=True)

    def expect_next(self, specs: Sequence[SandboxSpec]) -> None:
        """Expect that the jobs that are queued want sandboxes, in place of those before."""
        self._next = {
            spec.job_id: _Wish.of(spec) for spec in specs if spec.job_id not in self._expected
        }
        self._on_more()

    def wanted(self) -> Counter[Shape]:
        """Return how many of each shape are wanted; agents that seldom use theirs want none."""
        wishes = Counter(self._wanted)
        wishes.update(self._next.values())
        shapes: Counter[Shape] = Counter()
        for wish, number in wishes.items():
            if self._habits.is_likely(wish.agent):
                shapes[wish.shape] += number
        return shapes

    def _note_dispatch(self, job_id: str) -> None:
        """Take a job from the next ones, with those before it: other workers have them by now."""
        if job_id in self._next:
            for next_id in list(self._next):
                del self._next[next_id]
                if next_id == job_id:
                    break

    def _discount(self, expectation: _Expectation) -> None:
        if expectation.counts:
            expectation.counts = False
            self._wanted[expectation.wish] -= 1
            if not self._wanted[expectation.wish]:
                del self._wanted[expectation.wish]


@dataclass(frozen=True, eq=False)
class Warm:
    """A warm sandbox, ready to be adopted."""

    id: str
    shape: Shape
    started: Started


@dataclass(eq=False)
class _Start:
    """A start ahead, in progress."""

    shape: Shape
    task: asyncio.Task[Warm | None] = field(init=False)
    is_running: bool = False
    """It has passed the gate."""
    is_claimed: bool = False
    """A job waits for it."""


@dataclass(frozen=True)
class Opening:
    """What starts need from the engine's side."""

    steward: Steward
    gate: StartGate
    most_warm: int


class WarmPool:
    """The warm sandboxes of one worker.

    Args:
        opening: returns what starts need; starts the steward if there is none.
        starts: starts containers.
        close: removes a container, with what the worker holds for it.
        is_used: whether any may be started ahead.
    """

    def __init__(
        self,
        opening: Callable[[], Awaitable[Opening]],
        starts: ContainerStarts,
        close: Callable[[Container], Awaitable[None]],
        *,
        is_used: bool,
    ) -> None:
        self._opening = opening
        self._starts = starts
        self._close_container = close
        self._is_used = is_used
        self._most: int | None = None
        self._demand = Demand(self._fill)
        self._idle: defaultdict[Shape, list[Warm]] = defaultdict(list)
        self._starting: list[_Start] = []
        self._background: set[asyncio.Task[None]] = set()
        self._renaming = asyncio.Lock()
        """One at a time: nobody waits for a name, and others for the engine."""
        self._paused_until = 0.0

    @property
    def ready(self) -> int:
        """The number of warm sandboxes that can be adopted now."""
        return sum(map(len, self._idle.values()))

    def expect(self, spec: SandboxSpec) -> AbstractContextManager[None]:
        """See `SandboxProvider.expect`."""
        return self._demand.expect(spec)

    def expect_next(self, specs: Sequence[SandboxSpec]) -> None:
        """See `SandboxProvider.expect_next`."""
        self._demand.expect_next(specs)

    async def adopt(self, steward: Steward, spec: SandboxSpec) -> Started | None:
        """Make a warm sandbox that of a job; None when there is none, or the job has files here."""
        self._demand.note_opening(spec.job_id)
        while (warm := await self._take(Shape.of(spec))) is not None:
            try:
                started = await self._adopted(steward, warm, spec.job_id)
            except SandboxFailure as error:
                log.info("warm sandbox not adopted", reason=str(error))
                self._discard(warm)
            except BaseException:
                self._discard(warm)
                raise
            else:
                if started is None:
                    self._keep(warm)
                else:
                    loop = asyncio.get_running_loop()
                    loop.call_later(RENAME_SECONDS, self._rename, started.container, spec.job_id)
                self._fill()
                return started
        return None

    def _rename(self, container: Container, job_id: str) -> None:
        self._in_background(self._renamed(container, job_id))

    async def _renamed(self, container: Container, job_id: str) -> None:
        async with self._renaming:
            if not container.is_closed:
                await self._starts.rename(container, job_id)

    async def _adopted(self, steward: Steward, warm: Warm, job_id: str) -> Started | None:
        """Adopt one if the job has no files yet.

        Raises:
            SandboxFailure: it has died, or the steward.
        """
        client = warm.started.client
        await client.request("ping", {}, timeout_seconds=_ALIVE_SECONDS)
        files_id = await steward.adopt(warm.id, job_id)
        if not files_id:
            return None
        return replace(warm.started, prepared=replace(warm.started.prepared, files_id=files_id))

    async def _take(self, shape: Shape) -> Warm | None:
        """Return an idle one, or one that is just being started."""
        idle = self._idle.get(shape, [])
        while idle:
            warm = idle.pop()
            if not warm.started.client.is_dead:
                return warm
            self._discard(warm)
        for start in self._starting:
            if start.shape == shape and start.is_running and not start.is_claimed:
                return await self._claimed(start)
        return None

    async def _claimed(self, start: _Start) -> Warm | None:
        start.is_claimed = True
        try:
            return await asyncio.shield(start.task)
        except asyncio.CancelledError:
            if start.task.cancelled():
                return None
            start.is_claimed = False
            if start.task.done() and (warm := start.task.result()) is not None:
                self._keep(warm)
            raise

    def _fill(self) -> None:
        """Start what is wanted and missing, within the limit."""
        if not self._is_used or asyncio.get_running_loop().time() < self._paused_until:
            return
        wanted = self._demand.wanted()
        while missing := [shape for shape in wanted if self._lacks(shape, wanted[shape])]:
            for shape in missing:
                if not self._has_room():
                    return
                self._begin(shape)

    def _lacks(self, shape: Shape, wanted: int) -> bool:
        """Return whether more of a shape are wanted than there are, or will be."""
        starting = sum(each.shape == shape and not each.is_claimed for each in self._starting)
        return len(self._idle.get(shape, ())) + starting < wanted

    def _has_room(self) -> bool:
        """Return whether one more may be started; remove one that nobody wants, if need be."""
        number = sum(map(len, self._idle.values())) + len(self._starting)
        if self._most is None or number < self._most:
            return True
        wanted = self._demand.wanted()
        for shape, idle in self._idle.items():
            if len(idle) > wanted[shape]:
                self._discard(idle.pop(0))
                return True
        return False

    def _begin(self, shape: Shape) -> None:
        start = _Start(shape)
        start.task = asyncio.create_task(self._start(start))
        self._starting.append(start)
        start.task.add_done_callback(partial(self._forget, start))

    def _forget(self, start: _Start, _task: asyncio.Task[Warm | None]) -> None:
        self._starting.remove(start)
        self._fill()

    async def rehearse(self, spec: SandboxSpec) -> None:
        """See `SandboxProvider.rehearse`. It does not wait for its turn: it starts no job."""
        warm = await self._started(await self._opening(), Shape.of(spec))
        await uninterrupted(self._remove(warm))

    async def _started(self, opening: Opening, shape: Shape) -> Warm:
        """Start one; when that fails, its files are deleted.

        Raises:
            SandboxFailure: see `ContainerStarts.start`.
        """
        warm_id = f"warm-{secrets.token_hex(8)}"
        try:
            owner = Owner(id=warm_id, attempt=None)
            return Warm(warm_id, shape, await self._starts.start(opening.steward, shape, owner))
        except BaseException:
            await uninterrupted(self._delete_files(warm_id))
            raise

    async def _start(self, start: _Start) -> Warm | None:
        """Start one when no job waits for a start; None when it is not wanted by then, or fails."""
        try:
            opening = await self._opening()
            self._most = opening.most_warm
            async with opening.gate.patient():
                if not self._is_wanted(start.shape):
                    return None
                start.is_running = True
                warm = await self._started(opening, start.shape)
        except SandboxFailure as error:
            log.info("no sandbox was started ahead", reason=str(error))
            self._paused_until = asyncio.get_running_loop().time() + _FAILURE_PAUSE_SECONDS
            return None
        if not start.is_claimed:
            self._keep(warm)
        return warm

    def _is_wanted(self, shape: Shape) -> bool:
        """Return whether one more is wanted than are ready, or nearly."""
        running = sum(
            start.shape == shape and start.is_running and not start.is_claimed
            for start in self._starting
        )
        ready = len(self._idle.get(shape, ())) + running
        number = sum(map(len, self._idle.values())) + sum(one.is_running for one in self._starting)
        is_within = self._most is None or number < self._most
        return is_within and self._demand.wanted()[shape] > ready

    def _keep(self, warm: Warm) -> None:
        self._idle[warm.shape].append(warm)
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._age, warm)

    def _age(self, warm: Warm) -> None:
        """Remove a warm sandbox that has been idle for long, unless it is wanted."""
        idle = self._idle.get(warm.shape, [])
        if warm not in idle:
            return
        if len(idle) <= self._demand.wanted()[warm.shape]:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._age, warm)
            return
        idle.remove(warm)
        if not idle:
            del self._idle[warm.shape]
        self._discard(warm)

    def _discard(self, warm: Warm) -> None:
        """Remove one in the background."""
        self._in_background(self._remove(warm))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _remove(self, warm: Warm) -> None:
        await self._close_container(warm.started.container)
        await self._delete_files(warm.id)

    async def _delete_files(self, warm_id: str) -> None:
        """Delete what a warm sandbox has on the volume, unless a job has adopted it."""
        try:
            await (await self._opening()).steward.delete(warm_id, ahead=True)
        except SandboxFailure as error:
            log.warning("warm files not deleted, the reaper will retry", error=str(error))

    async def close(self) -> None:
        """Remove all."""
        self._is_used = False
        await cancel_and_wait(*(start.task for start in self._starting))
        for idle in self._idle.values():
            for warm in idle:
                self._discard(warm)
        self._idle.clear()
        await asyncio.gather(*self._background)
