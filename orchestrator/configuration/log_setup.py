"""Structured logs: JSON lines on standard error."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
import structlog.tracebacks

from ..tracing import spans
from ..valid_text import clean, escape_hidden

_QUOTE_REQUESTS = (
    "httpx", "httpcore", "httpx2", "httpcore2", "urllib3", "google_genai", "google_adk", "openai",
    "anthropic", "docker", "mcp", "client",
)  # fmt: skip
"""Loggers whose records below warning quote requests, and with them prompts; `client` is that of
MCP's sessions."""
_REPEATED = ("celery.worker.strategy",)
"""Loggers whose records below warning repeat what fanout's loggers say a moment later, that a task
has arrived."""

_traceback_with_texts = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


def _traceback(exc_info: structlog.typing.ExcInfo) -> list[dict[str, Any]]:
    """Return a traceback without the exceptions' texts, which may quote a prompt or a file."""
    stacks = _traceback_with_texts(exc_info)
    for stack in stacks:
        stack.pop("exc_value", None)
    return stacks


def _with_valid_text(
    _logger: object, _method: str, record: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Return a record that every reader of JSON accepts."""
    return {str(key): value for key, value in clean(record).items()}


def _with_trace(
    _logger: object, _method: str, record: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Return a record with the ids of the trace and of the span that it belongs to, if any."""
    if (context := spans.current()) is not None:
        record.setdefault("trace_id", context.trace_id)
        record.setdefault("span_id", context.span_id)
    return record


def set_up_logging(level: str) -> None:
    """Send the records of structlog and of all libraries through one JSON formatter.

    A second call replaces the set-up of the first.

    Args:
        level: One of the values of `Settings.log_level`.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_trace,
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
                _with_valid_text,
                structlog.processors.JSONRenderer(),
                lambda _logger, _method, line: escape_hidden(str(line)),
            ],
        ),
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in (*_QUOTE_REQUESTS, *(_REPEATED if level != "debug" else ())):
        logging.getLogger(name).setLevel(logging.WARNING)
