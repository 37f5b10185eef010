"""What others know of a model before it is asked, and what they learn from a request that failed.

A quota that is used up, a service that does not answer and a key that was revoked are the same for
all agents that use the key: the first request that finds it out is enough. Who runs agents may keep
such states (`AccessStates`); without that, each request finds it out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol
from uuid import uuid4

from ..failures import (
    ClosedAccess,
    ModelDenied,
    ModelFailed,
    ModelNotOpen,
    ModelQuotaUsedUp,
    ModelReplyUnusable,
    ModelUnresponsive,
)
from .access import find_service
from .errors import RATE_LIMITED_STATUS, REDIRECT_STATUS

DIGEST_DIGITS = 24
"""The digits of an access: enough to tell all models, addresses and keys apart."""
SCRIPTED = "scripted:"

EXHAUSTED = "exhausted"
LIMITED = "limited"
AWAY = "away"
REFUSED = "refused"

_WORDS = {
    EXHAUSTED: "has no quota left",
    LIMITED: "has too many requests",
    AWAY: "does not answer",
    REFUSED: "refuses the key, which had worked",
}


@dataclass(frozen=True)
class ModelAccess:
    """A model at an address with a key: what may be open or not."""

    name: str
    """The model's name as requested."""
    id: str
    """A digest of the three. It changes with the key, and says nothing of it."""


@dataclass(frozen=True)
class FailedRequest:
    """A request that failed for a reason that all others share."""

    id: str
    state: str
    """`exhausted`, `limited`, `away` or `refused`."""
    why: str
    """What is wrong, after the model's name; it has no words of the service, which may quote."""
    wait_seconds: float | None
    """The time that the service gives; None: it gives none."""
    seconds: float
    """How long ago it had failed before, or was first sent."""
    status: int | None
    """The HTTP status; None: nothing was answered."""


class AccessStates(Protocol):
    """Keeps the states of models. What its methods raise ends the run."""

    async def ask(self, access: ModelAccess, request: str) -> ClosedAccess | bool:
        """Return why a request may not be sent now; else whether it tries a closed model."""

    async def answered(self, access: ModelAccess, *, is_trial: bool) -> None:
        """Record that the model has answered."""

    async def failed(self, access: ModelAccess, failed: FailedRequest) -> ClosedAccess | None:
        """Record that a request failed; None if that says nothing about others."""


_states: ContextVar[AccessStates | None] = ContextVar("model_states", default=None)


@contextmanager
def asked_through(states: AccessStates | None) -> Iterator[None]:
    """Let requests to models that begin in this context obey these states; None: none are known."""
    token = _states.set(states)
    try:
        yield
    finally:
        _states.reset(token)


def model_access(name: str) -> ModelAccess | None:
    """Return the access of a model as the environment has it now; None for a scripted model.

    Args:
        name: One name as for `resolve_model`.
    """
    if name.startswith(SCRIPTED):
        return None
    service = find_service(name)
    variables = service.keys if service is not None else ()
    parts = [name, service.address if service is not None else ""]
    parts += [f"{variable}={os.environ.get(variable, '')}" for variable in variables]
    return ModelAccess(name, sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_DIGITS])


def model_accesses(names: str) -> tuple[str, ...]:
    """Return the ids of the accesses of a list of models, as `resolve_model` takes it."""
    found = (model_access(part.strip()) for part in names.split(",") if part.strip())
    return tuple(access.id for access in found if access is not None)


class HeldRequest:
    """One request to a model and its repetitions, as far as the model's state holds them back.

    Args:
        name: The model's name as requested.
    """

    def __init__(self, name: str) -> None:
        self._states = _states.get()
        self._access = None if self._states is None else model_access(name)
        self._id = uuid4().hex
        self._begun_at = time.monotonic()
        self._is_noted = False
        self.is_trial = False
        """Whether it tries a model that is not open."""

    @property
    def is_held(self) -> bool:
        """Whether anybody keeps the model's state."""
        return self._states is not None and self._access is not None

    async def ask(self) -> None:
        """Ask whether the request may be sent.

        Raises:
            ModelNotOpen: It may not.
        """
        if self._states is None or self._access is None:
            return
        answer = await self._states.ask(self._access, self._id)
        if not isinstance(answer, bool):
            raise ModelNotOpen([answer])
        self.is_trial = answer

    def is_repeated(self) -> None:
        """Note that the request has failed, and is going to be sent again."""
        self._begun_at = time.monotonic()

    async def answered(self) -> None:
        """Record that the service replies."""
        if self._states is not None and self._access is not None and not self._is_noted:
            self._is_noted = True
            await self._states.answered(self._access, is_trial=self.is_trial)

    async def failed(self, failure: ModelFailed) -> ModelFailed:
        """Return what a failure means: a ModelNotOpen if it is the same for all requests."""
        state = closed_by(failure)
        if self._states is None or self._access is None or state is None:
            return failure
        status = f" ({failure.status})" if failure.status else ""
        seconds = time.monotonic() - self._begun_at
        failed = FailedRequest(
            self._id, state, _WORDS[state] + status, failure.wait_seconds, seconds, failure.status
        )
        closed = await self._states.failed(self._access, failed)
        return failure if closed is None else ModelNotOpen([closed])


def closed_by(failure: ModelFailed) -> str | None:
    """Return the state that a failure means for a model; None if it is the request's own."""
    if isinstance(failure, ModelQuotaUsedUp):
        return EXHAUSTED
    if isinstance(failure, ModelDenied):
        return None if failure.status in {None, *REDIRECT_STATUS} else REFUSED
    if isinstance(failure, ModelReplyUnusable) or not isinstance(failure, ModelUnresponsive):
        return None
    return LIMITED if failure.status == RATE_LIMITED_STATUS else AWAY


def earliest(failures: Sequence[ModelFailed]) -> ModelFailed:
    """Return the failure of a list of models: a wait for one of them, if one is worth it."""
    closed = [one for each in failures if isinstance(each, ModelNotOpen) for one in each.closed]
    if closed:
        return ModelNotOpen(sorted(closed, key=lambda one: one.until))
    return failures[-1] if failures else ModelUnresponsive("No model was asked.")
