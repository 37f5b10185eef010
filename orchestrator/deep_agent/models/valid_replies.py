r"""Replies of models as text that every encoding can hold.

A model may send half of a surrogate pair (`\ud83d` without what follows it) anywhere in its reply.
"""

from __future__ import annotations

from typing import Any

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.valid_text import REPLACEMENT, clean, clean_text

CLEANED_CALLS = "cleaned_calls"
"""Key of a reply's metadata: the positions of the calls whose results say that characters of the
reply were replaced."""


def clean_reply(response: LlmResponse) -> None:
    """Replace what no text can hold in a reply's texts, thoughts, calls and error message.

    The metadata of a whole reply says in which calls that was; in the first if it was in none.
    """
    if response.error_message:
        response.error_message = clean_text(response.error_message)
    parts = (response.content.parts if response.content else None) or []
    cleaned = [clean_part(part) for part in parts]
    changed = [new is not old for new, old in zip(cleaned, parts, strict=True)]
    if response.content is None or not any(changed):
        return
    response.content = response.content.model_copy(update={"parts": cleaned})
    of_calls = [is_new for is_new, part in zip(changed, parts, strict=True) if part.function_call]
    if of_calls and not response.partial:
        calls = [position for position, is_new in enumerate(of_calls) if is_new] or [0]
        response.custom_metadata = {**(response.custom_metadata or {}), CLEANED_CALLS: calls}


def clean_part(part: types.Part) -> types.Part:
    """Return a part of a message with valid texts; itself if they all are."""
    update: dict[str, Any] = {}
    if part.text is not None and (text := clean_text(part.text)) is not part.text:
        update["text"] = text
    call = part.function_call
    if call is not None and (changed := _changed(call, "id", "name", "args")):
        if "name" in changed:  # services take back no name with other characters
            changed["name"] = changed["name"].replace(REPLACEMENT, "_")
        update["function_call"] = call.model_copy(update=changed)
    for name, fields in _OTHERS.items():
        inner = getattr(part, name)
        if inner is not None and (changed := _changed(inner, *fields)):
            update[name] = inner.model_copy(update=changed)
    return part.model_copy(update=update) if update else part


_OTHERS = {
    "function_response": ("id", "name", "response"),
    "executable_code": ("code",),
    "code_execution_result": ("output",),
    "file_data": ("file_uri", "display_name"),
}
"""The other fields of a part that have texts, with those fields."""


def _changed(model: Any, *fields: str) -> dict[str, Any]:
    """Return the fields whose values have to be replaced, with the new values."""
    values = {field: getattr(model, field) for field in fields}
    return {field: new for field, old in values.items() if (new := clean(old)) is not old}
