"""A worker of the pretended next release: it reads what this one does, and one version more."""

from fanout.orchestrator.jobs import versions
from fanout.workers.__main__ import main

if __name__ == "__main__":
    versions.WIRE_NEWEST += 1
    main()
