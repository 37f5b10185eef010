"""`python -m orchestrator` is `fanout`."""

from orchestrator.cli import main

main()
