"""Whether an engine can run sandboxes, answered at once: before anything is started for them.

Also a program, for the command line: `python -P -m workers.sandbox.docker.readiness IMAGE`.
"""

from __future__ import annotations

import asyncio
import sys

from orchestrator.jobs.failures import SandboxFailure
from workers.sandbox.docker.engine import Engine, image_missing
from workers.sandbox.docker.provider import STEWARD_IMAGE
from workers.sandbox.errors import EngineForbidden

ANSWER_SECONDS = 2.0
"""For an engine's version or its data about an image: a busy engine takes tenths of a second."""

EXIT_UNREACHABLE, EXIT_NOT_ALLOWED = 3, 4


async def check_engine(image: str) -> None:
    """Return if the engine of the environment answers and has the images of a sandbox.

    Raises:
        EngineForbidden: this user may not use it.
        EngineUnavailable: it does not answer.
        ImageMissing: the message names the command that builds the image.
    """
    engine = Engine(call_seconds=ANSWER_SECONDS)
    try:
        for name in (STEWARD_IMAGE, image):
            if await engine.image(name) is None:
                raise image_missing(name)
    finally:
        await engine.close()


def main() -> int:
    """Run the program; return its exit code, and say on stderr why there is no sandbox."""
    try:
        asyncio.run(check_engine(sys.argv[1]))
    except SandboxFailure as failure:
        print(failure, file=sys.stderr)  # noqa: T201 - the program's answer
        return EXIT_NOT_ALLOWED if isinstance(failure, EngineForbidden) else EXIT_UNREACHABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
