"""`Subscriptions`: the subscriptions to jobs, for the service's interfaces and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from ...jobs.failures import InvalidJob
from ...jobs.store.notification_store import NotificationStore
from ...jobs.store.subscription import Subscription
from .messages import signing_key
from .receivers import Receivers, UrlRefused


class Subscriptions:
    """Registers, lists and deletes subscriptions.

    It knows no callers: its user has checked that the job is the caller's (`OwnedJobs.get`), or has
    just made its id.

    Args:
        store: The store of the subscriptions.
        receivers: The rules for their URLs.
    """

    def __init__(self, store: NotificationStore, receivers: Receivers) -> None:
        self._store = store
        self._receivers = receivers

    async def check(self, subscription: Subscription) -> None:
        """Check a subscription before its job is submitted.

        Raises:
            InvalidJob: Its URL may not be notified, or a webhook has no usable secret.
        """
        try:
            await self._receivers.check(subscription.url)
            if subscription.kind == "webhook":
                signing_key(subscription.secret)
        except (UrlRefused, ValueError) as error:
            raise InvalidJob(str(error)) from None

    async def register(self, job_id: str, subscription: Subscription) -> None:
        """Store a subscription, in place of one with the same id.

        It may come before the job, and after the job has ended: see `NotificationStore.register`.

        Raises:
            InvalidJob: Its URL may not be notified, a webhook has no usable secret, or the job has
                too many subscriptions.
        """
        await self.check(subscription)
        await self.store(job_id, subscription)

    async def store(self, job_id: str, subscription: Subscription) -> None:
        """Store a subscription that was checked, as `register`."""
        await self._store.register(job_id, subscription)

    async def list(self, job_id: str) -> Sequence[Subscription]:
        """Return a job's subscriptions, without their secrets."""
        return await self._store.list(job_id)

    async def get(self, job_id: str, subscription_id: str) -> Subscription | None:
        """Return a subscription without its secret; None if there is none with this id."""
        return await self._store.get(job_id, subscription_id)

    async def delete(self, job_id: str, subscription_id: str) -> bool:
        """Delete a subscription, and return whether there was one."""
        return await self._store.delete(job_id, subscription_id)
