"""A worker of a pretended release before the first: what it reads ends where this one begins."""

from orchestrator.jobs import versions as wire
from workers.__main__ import main

if __name__ == "__main__":
    wire.WIRE_OLDEST, wire.WIRE_NEWEST = wire.WIRE_OLDEST - 1, wire.WIRE_OLDEST - 1
    main()
