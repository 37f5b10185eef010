"""The use of this machine's services by commands, which restart them after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ..cancellation import cancel_and_wait
from ..client.attachment import attached, state_folder
from ..client.state_folder import NotStarted
from ..configuration.settings import Settings
from ..jobs.failures import JobFailure
from .liveness import was_killed

if TYPE_CHECKING:
    from .services import Embedded

REVIVE_SECONDS = 2.0
"""The time between two checks of the used services: a killed worker's lease lasts longer."""


async def reachable(settings: Settings, notice: Callable[[str], None]) -> Settings:
    """Return the settings with the URL of Redis; killed services are restarted first.

    A restarted Redis and worker run until `stop_embedded`.

    Args:
        settings: The settings of this process.
        notice: Called with a text before a restart.

    Raises:
        LedgerUnavailable: No Redis is configured or running, or it cannot be restarted.
    """
    folder = state_folder(settings)
    pool = settings.worker.pool
    if settings.redis_url is None and await asyncio.to_thread(was_killed, folder, pool):
        notice(
            f"The Redis or worker of {folder.path} was killed; it is started again. "
            "Stop it: fanout down"
        )
        async with _services(settings, revive=True, notice=notice):
            pass
    return await asyncio.to_thread(attached, settings)


def outliving(settings: Settings, notice: Callable[[str], None] = lambda _text: None) -> Embedded:
    """Return services that outlive this process, and end when they are no longer used.

    Args:
        settings: The settings of this process.
        notice: As for `Embedded`.
    """
    idle_seconds = settings.embedded_idle_seconds
    return _services(settings, idle_seconds=idle_seconds, notice=notice)


def _services(
    settings: Settings,
    *,
    notice: Callable[[str], None],
    idle_seconds: float | None = None,
    revive: bool = False,
) -> Embedded:
    from .services import Embedded  # noqa: PLC0415 - few start any

    return Embedded(settings, keep=True, idle_seconds=idle_seconds, revive=revive, notice=notice)


@asynccontextmanager
async def in_use(
    settings: Settings, notice: Callable[[str], None], *, submits: bool = False
) -> AsyncIterator[Settings]:
    """Yield the settings with the URL of Redis, as `reachable`; Redis does not end meanwhile.

    Services that are killed meanwhile are restarted.

    Args:
        settings: The settings of this process.
        notice: Called with a text before a restart, and when a worker is started.
        submits: Whether jobs are submitted, which need a worker with these settings and keys; if
            none runs, it is started in addition to others.

    Raises:
        LedgerUnavailable: No Redis is configured or running, or it cannot be restarted.
        NoSandbox: A worker is needed, and commands could not be isolated.
    """
    found = await reachable(settings, notice)
    if settings.redis_url is not None:
        yield found
        return
    async with AsyncExitStack() as stack:
        stack.enter_context(await state_folder(settings).open_users())
        record = state_folder(settings).read_record()
        if submits and record is not None and record.kept:
            sandbox = settings.sandbox.model_copy(update={"provider": record.sandbox})
            same = settings.model_copy(update={"sandbox": sandbox})
            embedded = _services(same, idle_seconds=record.idle_seconds, notice=notice)
            found = (await stack.enter_async_context(embedded)).settings
        await stack.enter_async_context(revived(with_pool(settings, found), notice))
        yield found


def with_pool(settings: Settings, found: Settings) -> Settings:
    """Return a process's own settings with the pool of the found services."""
    return settings.model_copy(update={"worker": found.worker})


@asynccontextmanager
async def revived(settings: Settings, notice: Callable[[str], None]) -> AsyncIterator[None]:
    """Restart killed services of the state folder while the context is open.

    Args:
        settings: The settings of this process.
        notice: Called with a text before a restart.
    """

    async def revive() -> None:
        while True:
            await asyncio.sleep(REVIVE_SECONDS)
            with suppress(JobFailure, NotStarted):  # tried again
                await reachable(settings, notice)

    task = asyncio.create_task(revive())
    try:
        yield
    finally:
        await cancel_and_wait(task)
