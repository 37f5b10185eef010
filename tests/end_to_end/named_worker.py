"""A worker for which every name below `.example` is this machine."""

from fanout.workers.__main__ import main
from fanout.workers.sandbox.egress import uplink

_of_the_system = uplink._look_up


def _look_up(name: str) -> list[str]:
    return ["127.0.0.1"] if name.endswith(".example") else _of_the_system(name)


if __name__ == "__main__":
    uplink._look_up = _look_up
    main()
