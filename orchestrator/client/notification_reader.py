"""`NotificationReader`: the connection of a process that sends notifications."""

from __future__ import annotations

from ..jobs.store.keys import Keys
from ..jobs.store.notification_store import NotificationStore
from .job_reader import JobReader


class NotificationReader(JobReader):
    """A reader of jobs, with the outbox of notifications.

    Args:
        redis_url: The Redis that the workers use.
        prefix: The beginning of the installation's keys there.
    """

    def __init__(self, redis_url: str, prefix: str = Keys.prefix) -> None:
        super().__init__(redis_url, prefix)
        self.notifications = NotificationStore(self._redis, self._keys)
