"""Garbage collection of a worker: never of everything while many agents work.

Python collects cyclic garbage in three generations. The collection of the oldest one looks at every
object of the process and holds the interpreter meanwhile: a third of a second for the modules
alone, and longer for each agent. An agent leaves hardly any cyclic garbage, and most of that is
found by the two young generations, which take milliseconds. So what the warm-up has loaded is
exempt, and the oldest generation is collected when few agents work.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator

YOUNG_OBJECTS = 5_000
"""More objects made than freed before the youngest generation is collected: it takes a few
milliseconds, and most of what a step of an agent makes has been freed by then."""
MIDDLE_COLLECTIONS = 5
"""Collections of the youngest generation before the middle one is collected, in ten
milliseconds."""
NEVER = 1_000_000_000
"""Collections of the middle generation before Python itself collects the oldest one: more than ever
happen."""
INTERVAL_SECONDS = 30.0
"""The time between two checks whether the oldest generation is to be collected."""
QUIET_JOBS = 10
"""The most jobs with which its collection takes at most 20 ms."""
MAX_COLLECTIONS = 200
"""Collections of the middle generation after which the oldest is collected although many agents
work: a thousand agents need 20, and the garbage of 200 may take some hundred megabytes."""


class Garbage:
    """When the garbage of a worker process is collected.

    Args:
        running: Returns the number of jobs that the worker runs.
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._was_quiet = False

    @contextlib.contextmanager
    def exempt_import(self) -> Iterator[None]:
        """Collect nothing meanwhile, and never look at what is imported.

        An import leaves no garbage, and looking for it takes a quarter of its time; a collection of
        what agents need takes a quarter of a second.
        """
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            gc.enable()

    def exempt_loaded(self) -> None:
        """Never look at what is loaded now again; this blocks, so no job may run yet."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_COLLECTIONS, NEVER)

    async def run(self) -> None:
        """Collect the oldest generation at quiet times, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.collect_if_due()

    def collect_if_due(self) -> None:
        """Collect the oldest generation if something was added to it and few jobs run.

        Few at two checks in a row: what a thousand agents leave takes half a second, which those
        that have just been stopped need for their ends.
        """
        is_quiet = self._running() <= QUIET_JOBS
        stays_quiet, self._was_quiet = is_quiet and self._was_quiet, is_quiet
        if gc.get_count()[2] >= (1 if stays_quiet else MAX_COLLECTIONS):
            gc.collect()
