"""A worker of a pretended release before the first: what it reads ends where this one begins."""

from fanout.orchestrator.jobs import versions
from fanout.workers.__main__ import main

if __name__ == "__main__":
    versions.WIRE_OLDEST, versions.WIRE_NEWEST = versions.WIRE_OLDEST - 1, versions.WIRE_OLDEST - 1
    main()
