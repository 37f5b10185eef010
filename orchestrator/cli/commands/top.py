"""`top`: hosts, workers, queues and running jobs, live on one screen of the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ...cancellation import cancel_and_wait
from ...client.fleet_view import FleetView, whole_fleet
from ...jobs.failures import JobFailure
from ..terminal import output
from ..terminal.exit_codes import KeyRefused, ServiceUnreachable, UsageProblem
from ..terminal.options import AsJson
from ..terminal.session import open_reader
from ..terminal.waiting import speaking

if TYPE_CHECKING:
    from ..terminal.top_board import TopBoard

KEY_VARIABLE = "FANOUT_KEY"
"""The variable with the key of the service, as for `fanout mcp install`."""
MIN_SECONDS = 0.5
"""The shortest time between two readings: each takes Redis some milliseconds, with thousands of
workers more."""
FRAMES_PER_SECOND = 4
SIZE_VARIABLES = ("COLUMNS", "LINES")
"""The variables with the terminal's size at the start of the calling program."""
QUIT_KEYS = b"qQ\x03\x04"

Read = Callable[[], Awaitable[FleetView]]


def top(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help=f"Ask the service at this address, with the key in {KEY_VARIABLE}; "
            "default: ask Redis.",
        ),
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=MIN_SECONDS, help="The time between two readings."
        ),
    ] = 2.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print it once; this is the default if stdout is not a terminal."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show hosts, workers, models, budgets and running jobs, live.

    Unfit workers, the oldest queue and the job that has run longest come first. Models are listed
    while they are not to be asked, and budgets of trees while jobs of them run. Tokens and money
    are those of the last minute. A key that is not an operator's shows the jobs of its owner only.
    The key q quits. With --json it prints one document.
    """
    asyncio.run(_top(url, every, once=once, as_json=as_json))


async def _top(url: str | None, every: float, *, once: bool, as_json: bool) -> None:
    async with _reading(url) as read:
        if as_json:
            output.document((await read()).model_dump(mode="json"))
        elif once or not (output.stdout_is_terminal() and output.stdin_is_terminal()):
            _print(await read())
        else:
            await _show(read, every)


@asynccontextmanager
async def _reading(url: str | None) -> AsyncIterator[Read]:
    """Yield the function that reads the view, from Redis or from the service."""
    if url is None:
        async with open_reader() as reader:
            yield lambda: whole_fleet(reader)
        return
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise UsageProblem(
            f"{KEY_VARIABLE} is not set: set it to the key for --url (`fanout keys create` makes "
            "one)."
        )
    from ..terminal.service import (  # noqa: PLC0415 - loads an HTTP client
        open_service,
    )

    async with open_service(url, key) as service:
        yield service.fleet


def _print(view: FleetView) -> None:
    """Print a view once, as tables that a program can cut into columns."""
    from ..terminal.top_board import (  # noqa: PLC0415 - loads rich
        summary,
        tables,
    )

    for line in summary(view):
        output.payload(line.plain)
    for table in tables(view).values():
        output.payload("")
        output.table(table.header, table.rows, elastic=table.elastic)


async def _show(read: Read, every: float) -> None:
    """Show the view until a person quits; a failure to read it is shown, and reading continues.

    Raises:
        JobFailure: The first reading failed.
    """
    from rich.console import Console  # noqa: PLC0415 - what prints once needs little of it
    from rich.live import Live  # noqa: PLC0415 - the same

    from ..terminal.top_board import TopBoard  # noqa: PLC0415 - the same

    for variable in SIZE_VARIABLES:
        os.environ.pop(variable, None)
    board, console = TopBoard(), Console(highlight=False)
    board.view = await read()
    with (
        speaking(),
        _quitting() as quits,
        Live(
            console=console,
            get_renderable=lambda: board.render(console.height, console.width),
            refresh_per_second=FRAMES_PER_SECOND,
            screen=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ),
    ):
        while not quits.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await quits.wait()
            await _update(board, read, quits)


async def _update(board: TopBoard, read: Read, quits: asyncio.Event) -> None:
    """Read the view again, unless a person quits meanwhile."""
    reading = asyncio.ensure_future(read())
    quitting = asyncio.create_task(quits.wait())
    try:
        await asyncio.wait((reading, quitting), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            board.view, board.problem = reading.result(), ""
    except (JobFailure, ServiceUnreachable, KeyRefused) as failure:
        board.problem = str(failure)
    finally:
        await cancel_and_wait(reading, quitting)


@contextmanager
def _quitting() -> Iterator[asyncio.Event]:
    """Yield an event that is set by q, by Ctrl-C, or when the process is to end."""
    loop, quits = asyncio.get_running_loop(), asyncio.Event()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed() -> None:
        keys = os.read(terminal, 64)
        if not keys or any(key in QUIT_KEYS for key in keys):
            quits.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    tty.setcbreak(terminal)
    for number in signals:
        loop.add_signal_handler(number, quits.set)
    loop.add_reader(terminal, pressed)
    try:
        yield quits
    finally:
        loop.remove_reader(terminal)
        for number in signals:
            loop.remove_signal_handler(number)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
