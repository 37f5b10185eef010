"""The command line: `fanout …`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; ends the process.

    Importing it takes up to a second, and Ctrl-C ends that as quietly as all that follows.
    """
    try:
        from orchestrator.cli.app import main as run_commands  # noqa: PLC0415 - see above

        run_commands()
    except KeyboardInterrupt:
        sys.exit(130)
