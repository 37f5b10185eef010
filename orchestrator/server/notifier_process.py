"""A process that sends the notifications of a state folder's services, if no server runs.

`fanout run` and `fanout submit` start it with the Redis and the worker of this machine; it ends
with them.
"""

from __future__ import annotations

import asyncio

from ..cancellation import cancel_and_wait
from ..client.notification_reader import NotificationReader
from ..client.state_folder import EmbeddedRecord, StateFolder
from ..configuration.log_setup import set_up_logging
from ..configuration.settings import Settings, load_settings
from ..process_secrets import seal_process
from .notifications.notifier import make_notifications

CHECK_SECONDS = 2.0
"""The time between two checks of the folder's record: the process ends soon after the services."""


async def notify(settings: Settings) -> None:
    """Send until the services of the state folder have ended.

    Args:
        settings: The settings; the folder's record has the address of Redis.
    """
    folder = StateFolder(settings.state_dir)
    while (record := folder.read_record()) is not None:
        async with NotificationReader(record.redis_url, settings.redis_prefix) as reader:
            of = (reader, reader.notifications, settings.notifications)
            task = asyncio.create_task(make_notifications(*of).run())
            try:
                await _until_changed(folder, record)
            finally:
                await cancel_and_wait(task)


async def _until_changed(folder: StateFolder, record: EmbeddedRecord) -> None:
    while (  # noqa: ASYNC110 - another process writes the file
        now := folder.read_record()
    ) and now.redis_url == record.redis_url:
        await asyncio.sleep(CHECK_SECONDS)


def main() -> None:
    """Send the notifications of this process's state folder."""
    seal_process()
    settings = load_settings()
    set_up_logging(settings.log_level)
    asyncio.run(notify(settings))


if __name__ == "__main__":
    main()
