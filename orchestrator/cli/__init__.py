"""The command line: `fanout …`."""

from orchestrator.cli.app import main

__all__ = ["main"]
