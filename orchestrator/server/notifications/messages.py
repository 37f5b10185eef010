"""The content of a notification about a job, and the request to a webhook.

A webhook gets a small JSON document, signed as Standard Webhooks says. It has no prompt, no summary
and no file: a receiver asks the service for more, with a key. Other kinds of receivers have their
own builders.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from pydantic import SecretStr
from standardwebhooks import Webhook

from ...jobs.failures import NotUnderstood
from ...jobs.result import JobResult, Usage
from ...jobs.state import TERMINAL_STATES, JobRecord, JobState
from ...jobs.store.subscription import APPROVAL, Notification

_UNUSUAL = re.compile(r"[^A-Za-z0-9_.:-]")
SECRET_PREFIX = "whsec_"  # noqa: S105 - the beginning of secrets
LEAST_SECRET_BYTES = 24
"""The shortest secret that Standard Webhooks permits."""
MOST_SECRET_BYTES = 64
"""The longest secret that Standard Webhooks permits."""
USER_AGENT = "fanout-notifications/1"
SECRET_RULE = (
    f"A webhook's secret is {SECRET_PREFIX} and {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} random "
    "bytes in base64."
)


class JobsToRead(Protocol):
    """The source of a job's data for a message."""

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record, or raise UnknownJob."""

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result, None until it has ended."""

    async def usage(self, job_id: str) -> Usage:
        """Return the usage of a job and those below it."""


@dataclass(frozen=True)
class HookEvent:
    """The data for a hook."""

    event: str
    """`finished` or `approval`."""
    job_id: str
    root_id: str
    agent: str
    state: str
    reason: str = ""
    """The type of the failure."""

    def variables(self) -> dict[str, str]:
        """Return the variables of the command, which only have letters, digits and `_.:-`."""
        fields = {
            "EVENT": self.event,
            "ID": self.job_id,
            "ROOT_ID": self.root_id,
            "AGENT": self.agent,
            "STATE": self.state,
            "REASON": self.reason,
        }
        return {f"FANOUT_JOB_{name}": _UNUSUAL.sub("_", text) for name, text in fields.items()}


async def describe_end(jobs: JobsToRead, job_id: str, state: str) -> HookEvent:
    """Return the data for a hook about a job that has ended.

    Args:
        jobs: Reads jobs.
        job_id: The job.
        state: The state that it has reached.

    Raises:
        UnknownJob: It no longer exists.
    """
    record = await jobs.get(job_id)
    try:
        result = await jobs.result(job_id)
    except NotUnderstood:  # of another release
        result = None
    reason = result.error.type if result and result.error else ""
    return HookEvent("finished", job_id, record.root_id, record.agent, state, reason)


async def describe_wait(jobs: JobsToRead, job_id: str) -> HookEvent:
    """Return the data for a hook about a job that waits for a person.

    Raises:
        UnknownJob: It no longer exists.
    """
    record = await jobs.get(job_id)
    waiting = JobState.WAITING.value
    return HookEvent("approval", job_id, record.root_id, record.agent, waiting)


@dataclass(frozen=True)
class OutgoingMessage:
    """The request for a subscriber."""

    body: bytes
    headers: Mapping[str, str]


MessageBuilder = Callable[[Notification], Awaitable[OutgoingMessage]]
"""Makes the request for a notification of its kind of subscription.

It raises UnknownJob when the job no longer exists: nothing is sent then.
"""


class WebhookMessages:
    """Builds the messages of webhooks.

    Args:
        jobs: The jobs of all owners.
        base_url: The address of the service for receivers; links begin with it.
    """

    def __init__(self, jobs: JobsToRead, base_url: str = "") -> None:
        self._jobs = jobs
        self._base_url = base_url.rstrip("/")

    async def __call__(self, sent: Notification) -> OutgoingMessage:
        """Return the signed request of a notification.

        Raises:
            UnknownJob: The job no longer exists.
            ValueError: The subscription has no secret that can be used.
        """
        content = {
            "type": event_type(sent),
            "id": sent.id,
            "at": sent.at,
            "job": await self._job(sent),
        }
        if sent.what == APPROVAL:
            waiting = await self._jobs.get(sent.source_id)
            content["approval"] = {"job_id": sent.source_id, "ids": list(waiting.approvals)}
        body = json.dumps(content, separators=(",", ":"))
        secret = sent.subscription.secret if sent.subscription else None
        return OutgoingMessage(body.encode(), signed_headers(sent.id, body, secret))

    async def _job(self, sent: Notification) -> dict[str, Any]:
        record = await self._jobs.get(sent.job_id)
        state = JobState.WAITING.value if sent.what == APPROVAL else sent.what
        described: dict[str, Any] = {
            "id": record.id,
            "root_id": record.root_id,
            "parent_id": record.parent_id,
            "agent": record.agent,
            "state": state,
            "labels": record.labels,
            "links": self._links(record.id),
        }
        if state in TERMINAL_STATES:
            result = await self._jobs.result(sent.job_id)
            usage = await self._jobs.usage(sent.job_id)
            error = result.error if result else None
            described |= {"reason": error.type if error else None, "usage": usage.model_dump()}
        return described

    def _links(self, job_id: str) -> dict[str, str]:
        path = f"{self._base_url}/v1/jobs/{job_id}"
        return {"self": path} | {name: f"{path}/{name}" for name in ("events", "patch", "tree")}


def event_type(sent: Notification) -> str:
    """Return the name of an event: job.finished, job.approval or job.state."""
    if sent.what == APPROVAL:
        return "job.approval"
    return "job.finished" if sent.what in TERMINAL_STATES else "job.state"


def signed_headers(message_id: str, body: str, secret: SecretStr | None) -> dict[str, str]:
    """Return the headers of a message, with its signature.

    Raises:
        ValueError: There is no secret, or it has another form.
    """
    at = datetime.now(UTC)
    signer = Webhook(signing_key(secret))
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": signer.sign(message_id, at, body),
    }


def signing_key(secret: SecretStr | None) -> bytes:
    """Return the key with which a secret signs.

    Raises:
        ValueError: There is no secret, or it has another form.
    """
    text = secret.get_secret_value() if secret else ""
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    is_long_enough = LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES
    if not text.startswith(SECRET_PREFIX) or not is_long_enough:
        raise ValueError(SECRET_RULE)
    return key


def new_secret() -> str:
    """Return a random secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(LEAST_SECRET_BYTES)).decode()
