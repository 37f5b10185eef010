"""Which sandboxes are wanted soon: those of running jobs that have none yet, and of queued ones."""

from __future__ import annotations

import contextlib
from asyncio import get_running_loop
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fanout.workers.sandbox.docker.opening.habits import Habits
from fanout.workers.sandbox.docker.opening.shape import Shape
from fanout.workers.sandbox.protocol import SandboxSpec

EXPECTED_SECONDS = 60.0
"""How long a job is expected to want its sandbox soon: longer than most answers of a model. An idle
container takes some ten MB of its host."""


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
        """In the order in which they will probably be dispatched."""
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
