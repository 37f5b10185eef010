"""A worker of the pretended next release: it reads what this one does, and one version more."""

from orchestrator.jobs import versions as wire
from workers.__main__ import main

if __name__ == "__main__":
    wire.WIRE_NEWEST += 1
    main()
