"""Who watches the requests of a run, and what is told them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class ModelProgress(Protocol):
    """Gets the progress of a run's requests. It must return at once, and gets no text of them."""

    def asked(self, model: str, attempt: int) -> None:
        """A request is sent.

        Args:
            model: The model's name as requested.
            attempt: The number of the attempt with this model, from 1.
        """

    def received(self, characters: int) -> None:
        """A piece of the reply came, of so many characters."""

    def failed(self, why: str) -> None:
        """The attempt failed, and another one follows.

        Args:
            why: A status such as `503`, or a few words of ours.
        """

    def answered(self) -> None:
        """The request is over, with a reply or without one."""


_watching: ContextVar[ModelProgress | None] = ContextVar("model_progress", default=None)


@contextmanager
def watched_by(progress: ModelProgress | None) -> Iterator[None]:
    """Let requests to models that begin in this context be reported.

    Their replies are streamed from the services where these can, so that it is seen that they come.
    None: nobody watches them, and they are not streamed for it.
    """
    token = _watching.set(progress)
    try:
        yield
    finally:
        _watching.reset(token)


def watcher() -> ModelProgress | None:
    """Return who watches the requests of this context; None for nobody."""
    return _watching.get()


class _Nobody:
    """Watches nothing; see `ModelProgress`."""

    def asked(self, model: str, attempt: int) -> None:
        pass

    def received(self, characters: int) -> None:
        pass

    def failed(self, why: str) -> None:
        pass

    def answered(self) -> None:
        pass


NOBODY: ModelProgress = _Nobody()
"""For requests that nobody watches."""
