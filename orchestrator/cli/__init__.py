"""The `fanout` command line."""

import sys

from orchestrator.process_secrets import seal_process

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process.

    The import takes up to a second; Ctrl-C during it must end the process without a traceback too.
    """
    seal_process()
    try:
        from orchestrator.cli.app import main as run_commands  # noqa: PLC0415 - see above

        run_commands()
    except KeyboardInterrupt:
        sys.exit(130)
