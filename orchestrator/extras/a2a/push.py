"""Push notifications: configurations of clients as subscriptions, and their messages.

They are delivered like webhooks: from the outbox in Redis, with retries, to checked addresses only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re

from a2a.types import (
    StreamResponse,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import MessageToJson
from pydantic import SecretStr, ValidationError

from ...jobs.state import JobState
from ...jobs.store.subscription import (
    APPROVAL,
    Notification,
    NotifiedEvent,
    Subscription,
)
from ...server.notifications.messages import (
    SECRET_PREFIX,
    JobsToRead,
    OutgoingMessage,
    signed_headers,
)
from ...server.notifications.subscriptions import Subscriptions
from ...server.owned_jobs import OwnedJobs
from .protocol import STATES, job_context, to_timestamp

KIND = "a2a_push"
TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 - a header's name
CONTENT_TYPE = "application/json"
_USABLE = re.compile(r"[ -~]{0,2000}")
"""The pattern of texts that become a header."""


class PushConfigs:
    """The configurations of tasks.

    Args:
        jobs: The caller's jobs.
        subscriptions: The store of the configurations.
    """

    def __init__(self, jobs: OwnedJobs, subscriptions: Subscriptions) -> None:
        self._jobs = jobs
        self._subscriptions = subscriptions

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """Check a configuration before the job of its task is submitted.

        Raises:
            InvalidParamsError: A text of it cannot be used.
            InvalidJob: Its URL may not be notified.
        """
        await self._subscriptions.check(_subscription(config))

    async def create(
        self, task_id: str, config: TaskPushNotificationConfig
    ) -> TaskPushNotificationConfig:
        """Store a configuration, in place of one with the same id.

        Raises:
            UnknownJob: There is no such task, for this caller.
            InvalidParamsError: A text of it cannot be used.
            InvalidJob: Its URL may not be notified, or the task has too many.
        """
        subscription = _subscription(config)
        await self._jobs.subscribe(task_id, subscription, self._subscriptions)
        return _shown(task_id, subscription)

    async def all(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """Return the configurations of a task, without their secrets."""
        found = await self._jobs.subscriptions(task_id)
        return [_shown(task_id, one) for one in found if one.kind == KIND]

    async def get(self, task_id: str, config_id: str) -> TaskPushNotificationConfig:
        """Return a configuration, without its secrets.

        Raises:
            TaskNotFoundError: The task has none with this id: the protocol has no other error.
        """
        found = [one for one in await self.all(task_id) if one.id == config_id]
        if not found:
            raise TaskNotFoundError
        return found[0]

    async def delete(self, task_id: str, config_id: str) -> None:
        """Delete a configuration; a repetition changes nothing."""
        if any(one.id == config_id for one in await self.all(task_id)):
            await self._jobs.unsubscribe(task_id, config_id)


def _subscription(config: TaskPushNotificationConfig) -> Subscription:
    scheme, credentials = config.authentication.scheme, config.authentication.credentials
    if not all(_USABLE.fullmatch(text) for text in (config.token, scheme, credentials)):
        raise InvalidParamsError("token and authentication are up to 2,000 ASCII characters.")
    secret = json.dumps({"token": config.token, "credentials": credentials})
    try:
        return Subscription(
            **({"id": config.id} if config.id else {}),
            kind=KIND,
            url=config.url,
            events=frozenset({NotifiedEvent.STATE, NotifiedEvent.APPROVAL}),
            secret=SecretStr(secret),
            details={"scheme": scheme},
        )
    except ValidationError as failure:
        error = failure.errors()[0]
        raise InvalidParamsError(f"{'.'.join(map(str, error['loc']))}: {error['msg']}.") from None


def _shown(task_id: str, subscription: Subscription) -> TaskPushNotificationConfig:
    shown = TaskPushNotificationConfig(id=subscription.id, task_id=task_id, url=subscription.url)
    if scheme := str(subscription.details.get("scheme", "")):
        shown.authentication.scheme = scheme
    return shown


class PushMessages:
    """Builds the message: the task's new state, without texts of people or models.

    Args:
        jobs: The jobs of all owners.
    """

    def __init__(self, jobs: JobsToRead) -> None:
        self._jobs = jobs

    async def __call__(self, sent: Notification) -> OutgoingMessage:
        """Return the request of a notification.

        Raises:
            UnknownJob: The job no longer exists.
        """
        record = await self._jobs.get(sent.job_id)
        state = (
            TaskState.TASK_STATE_INPUT_REQUIRED
            if sent.what == APPROVAL
            else STATES[JobState(sent.what)]
        )
        update = TaskStatusUpdateEvent(
            task_id=record.id,
            context_id=job_context(record),
            status=TaskStatus(state=state, timestamp=to_timestamp(sent.at)),
        )
        body = MessageToJson(StreamResponse(status_update=update), indent=None)
        return OutgoingMessage(body.encode(), _headers(sent, body))


def push_builders(jobs: JobsToRead) -> dict[str, PushMessages]:
    """Return what makes the messages of push notifications, by the kind of their subscriptions.

    Args:
        jobs: The jobs of all owners.
    """
    return {KIND: PushMessages(jobs)}


def _headers(sent: Notification, body: str) -> dict[str, str]:
    """Return the headers: the client's token and credentials, and a signature by the token.

    The signature is that of webhooks (Standard Webhooks); its key is the SHA-256 of the token.
    """
    subscription = sent.subscription
    secret = subscription.secret if subscription else None
    given = json.loads(secret.get_secret_value()) if secret else {}
    headers = {"Content-Type": CONTENT_TYPE, "webhook-id": sent.id}
    if token := given.get("token"):
        key = base64.b64encode(hashlib.sha256(token.encode()).digest()).decode()
        headers = signed_headers(sent.id, body, SecretStr(f"{SECRET_PREFIX}{key}"))
        headers[TOKEN_HEADER] = token
    scheme = subscription.details.get("scheme") if subscription else None
    if scheme and given.get("credentials"):
        headers["Authorization"] = f"{scheme} {given['credentials']}"
    return headers
