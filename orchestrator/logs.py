"""Loggers for library code: safe in any set-up of logging, and without one.

An exception is never passed to a logger: a program's set-up may print the local variables of each
frame, with prompts and keys, and take minutes for that.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from typing import Any

import structlog

MAX_FRAMES = 20
"""The most frames of an exception in a record, the innermost ones: the others are those of the
agent's loop."""


class Logger:
    """Logs with structlog if a program has configured it, otherwise with Python's logging.

    structlog without a configuration would print to the standard output.

    Args:
        name: The module's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._plain = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def info(self, event: str, **fields: Any) -> None:
        """Log an event; the fields hold no content of prompts, replies and files."""
        self._logger.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what a person should look at; see `info`."""
        self._logger.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a fault; see `info`."""
        self._logger.error(event, **fields)

    @property
    def _logger(self) -> Any:
        return structlog.get_logger(self._name) if structlog.is_configured() else self._plain


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception's class and where it was raised, as fields of a record.

    Its text is left out, because it may contain anything.
    """
    innermost = deque(traceback.walk_tb(error.__traceback__), MAX_FRAMES)
    frames = traceback.StackSummary.extract(innermost, lookup_lines=False)
    return {
        "error": type(error).__name__,
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
