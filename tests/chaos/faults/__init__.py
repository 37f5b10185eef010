"""The kinds of fault, each with `inject` and `heal`."""

from __future__ import annotations

from tests.chaos.faults.base import Fault
from tests.chaos.faults.engine import EngineKilled, EngineStaysAway, EngineStopped
from tests.chaos.faults.machine import DiskFull, WrongClock
from tests.chaos.faults.network import AnswersLost, NetworkCut, NetworkSwallows
from tests.chaos.faults.power import PowerFailure
from tests.chaos.faults.redis import RedisFull, RedisHangs, RedisKilled
from tests.chaos.faults.sandboxes import ContainerKilled, ResidentKilled, StewardKilled
from tests.chaos.faults.workers import EarlierRelease, WorkerKilled, WorkerStopped, WorkerToldToEnd
from tests.chaos.installation import Installation
from tests.chaos.plan import PlannedFault

_CLASSES: dict[str, type[Fault]] = {
    "worker killed": WorkerKilled,
    "worker stopped": WorkerStopped,
    "worker told to end": WorkerToldToEnd,
    "redis killed": RedisKilled,
    "redis hangs": RedisHangs,
    "redis full": RedisFull,
    "network cut": NetworkCut,
    "network swallows": NetworkSwallows,
    "answers lost": AnswersLost,
    "container killed": ContainerKilled,
    "resident killed": ResidentKilled,
    "steward killed": StewardKilled,
    "engine killed": EngineKilled,
    "engine stopped": EngineStopped,
    "engine stays away": EngineStaysAway,
    "power failure": PowerFailure,
    "disk full": DiskFull,
    "wrong clock": WrongClock,
    "earlier release": EarlierRelease,
}


def find_fault(planned: PlannedFault, place: Installation) -> Fault:
    """The fault that a plan names."""
    return _CLASSES[planned.kind](place, planned.target)
