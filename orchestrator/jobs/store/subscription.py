"""A subscription to what happens to a job, and a notification of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, JsonValue, SecretStr, StringConstraints
from ulid import ULID

MAX_URL_CHARACTERS = 2_048
"""The longest URL that browsers and servers accept."""

APPROVAL = "approval"
"""The event of a job that waits for a person; any other event is a state."""

SubscriptionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]


class NotifiedEvent(StrEnum):
    """What a subscription can ask for."""

    END = "end"
    """The job has ended."""
    APPROVAL = "approval"
    """The job, or one below it, waits for a person."""
    STATE = "state"
    """Every change of the job's state, its end included."""


class Subscription(BaseModel):
    """A receiver of notifications about a job, with their occasion and form."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: SubscriptionId = Field(default_factory=lambda: str(ULID()))
    """Unique within its job; one with a known id replaces the other."""
    kind: Literal["webhook", "a2a_push"] = "webhook"
    """Decides the form of what is sent."""
    url: str = Field(max_length=MAX_URL_CHARACTERS)
    events: frozenset[NotifiedEvent] = Field(
        default=frozenset({NotifiedEvent.END, NotifiedEvent.APPROVAL}), min_length=1
    )
    secret: SecretStr | None = Field(default=None, max_length=4_096)
    """The secret for signing or authentication. The store returns it only for sending."""
    details: dict[str, JsonValue] = Field(default_factory=dict)
    """Further details that the kind needs, none of them secret."""

    @property
    def receiver(self) -> str:
        """The host that is notified, as its outbox is called."""
        return (urlsplit(self.url).hostname or "").rstrip(".")

    def stored(self) -> str:
        """Return the form in the store, with the secret."""
        fields = self.model_dump(mode="json", exclude={"secret"})
        secret = self.secret.get_secret_value() if self.secret else None
        return json.dumps({**fields, "secret": secret, "receiver": self.receiver})

    @classmethod
    def read(cls, stored: str) -> Self:
        """Return the subscription of a stored form.

        Raises:
            ValueError: It is not a subscription.
        """
        fields = json.loads(stored)
        fields.pop("receiver", None)
        return cls.model_validate(fields)

    def without_secret(self) -> Self:
        """Return the subscription as it is listed."""
        return self.model_copy(update={"secret": None})


@dataclass(frozen=True)
class Notification:
    """An event that a subscriber, or the installation's hook, is notified of."""

    id: str
    """The same for each try, and for the same event."""
    receiver: str
    """The host, or `HOOK`."""
    job_id: str
    """The subscribed job."""
    subscription: Subscription | None
    """The subscription; None for the hook."""
    what: str
    """The state that the job has reached, or `approval`."""
    source_id: str
    """The job that waits for a person: the subscribed job or one below it."""
    at: float
    """When it happened, in seconds since the epoch by Redis's clock."""
    tries: int
    """The number of this try, from 1."""
