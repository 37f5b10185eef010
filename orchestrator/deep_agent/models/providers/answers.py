"""What a service answers with a good status, before it is taken for a reply of a model."""

from __future__ import annotations

import json
from typing import Any

from fanout.orchestrator.deep_agent.models.errors import NotAReply, UnusableReply, error_in
from fanout.orchestrator.shortening import one_line

MAX_QUOTED_CHARACTERS = 200
"""How much of an answer that is no reply an error quotes."""

_NO_STREAM = ("application/json", "text/html")
"""The beginnings of media types of answers that are not streamed."""


def raise_error_in(reply: Any) -> None:
    """Raise what a reply with a good status says of an error.

    Args:
        reply: An object of a client, or JSON that it could not make one of.

    Raises:
        ReplyFailed: It says something.
        NotAReply: It is a text: a page of a proxy, or of another server.
    """
    if isinstance(reply, str):
        raise NotAReply(quoted(reply))
    is_json = isinstance(reply, list | dict)
    body = _as_json(reply) if is_json else {"error": _as_json(getattr(reply, "error", None))}
    if (failed := error_in(body)) is not None:
        raise failed


def quoted(reply: Any) -> str:
    """Return the beginning of an answer on one line, to be quoted in an error."""
    text = reply if isinstance(reply, str) else json.dumps(_as_json(reply), default=str)
    return one_line(text, MAX_QUOTED_CHARACTERS)


async def check_is_stream(answer: Any) -> None:
    """Check that a streamed answer is one.

    Args:
        answer: The stream of a client.

    Raises:
        ReplyFailed: It is an error that is not streamed.
        UnusableReply: It is another JSON value.
        NotAReply: It is anything else.
    """
    response = getattr(answer, "response", None)
    kind = "" if response is None else response.headers.get("content-type", "")
    if response is None or not kind.startswith(_NO_STREAM):
        return
    text = (await response.aread()).decode(errors="replace")
    if text.lstrip().startswith(("data:", "event:")):
        return
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise NotAReply(quoted(text)) from None
    raise error_in(body) or UnusableReply(f"it is no stream: {quoted(text)}")


def _as_json(value: Any) -> Any:
    """Return a client's objects as the JSON that they were made of."""
    if isinstance(value, list):
        return list(map(_as_json, value))
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True, warnings=False)
    return value
