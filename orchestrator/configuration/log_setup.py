"""Structured logs: JSON lines on standard error, once per process."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
import structlog.tracebacks

_traceback_with_texts = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


def _traceback(exc_info: structlog.typing.ExcInfo) -> list[dict[str, Any]]:
    """A traceback without the exceptions' texts: they may quote a prompt or a file."""
    stacks = _traceback_with_texts(exc_info)
    for stack in stacks:
        stack.pop("exc_value", None)
    return stacks


def set_up_logging(level: str) -> None:
    """Send structlog's and every library's records through one JSON formatter.

    `level` is one of `Settings.log_level`. Calling it again replaces what was set before.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(
            _traceback_with_texts if level == "debug" else _traceback
        ),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        ),
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    http = ("httpx", "httpcore", "httpx2", "httpcore2", "urllib3")
    # `client` is the name under which MCP's sessions log
    for noisy in (
        *http,
        "google_genai",
        "google_adk",
        "openai",
        "anthropic",
        "docker",
        "mcp",
        "client",
    ):
        # Their records below warning quote requests, and with them prompts.
        logging.getLogger(noisy).setLevel(logging.WARNING)
