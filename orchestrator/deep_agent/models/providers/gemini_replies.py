"""Replies of Gemini's interface, checked before Google's client reads them.

The client takes an error with a good status for an empty reply, and raises errors of Python at
arguments that are no object.
"""

from __future__ import annotations

import json
from typing import Any

from google.genai import types

from fanout.orchestrator.deep_agent.models.call_arguments import marked_arguments
from fanout.orchestrator.deep_agent.models.endings import ended_with
from fanout.orchestrator.deep_agent.models.errors import NotAReply, error_in
from fanout.orchestrator.deep_agent.models.providers.answers import quoted

_KNOWN_REASONS = frozenset(reason.value for reason in types.FinishReason)


def checked_text(text: str) -> str:
    """Return the text of a whole reply, changed where the client could not read it.

    Raises:
        ReplyFailed: The answer is an error.
        NotAReply: It is no answer of a model's service.
        UnusableReply: It ended for a reason that is unknown.
    """
    try:
        body = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise NotAReply(quoted(text)) from None
    return json.dumps(body) if check_body(body) else text


def check_body(body: Any) -> bool:
    """Check a reply, or a piece of one, and change in place what the client could not read.

    Returns whether anything was changed; raises as `checked_text`.
    """
    if (failed := error_in(body)) is not None:
        raise failed
    if not isinstance(body, dict):
        raise NotAReply(quoted(body))
    is_changed = False
    for candidate in body.get("candidates") or ():
        reason = str(candidate.get("finishReason") or "")
        if reason and reason.upper() not in _KNOWN_REASONS:
            raise ended_with(reason, candidate.get("finishMessage"))
        content = candidate.get("content")
        for part in (content.get("parts") if isinstance(content, dict) else None) or ():
            call = part.get("functionCall") if isinstance(part, dict) else None
            if call is not None and not isinstance(call.get("args"), dict | None):
                call["args"], is_changed = marked_arguments(call["args"]), True
    return is_changed
