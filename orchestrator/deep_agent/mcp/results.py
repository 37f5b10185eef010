"""Results of MCP tools, in the form of our tools' results."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types
from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

from fanout.orchestrator.deep_agent.mcp.schemas import find_fault, make_validator
from fanout.orchestrator.deep_agent.tool import error_result
from fanout.orchestrator.deep_agent.tools.media import media_type_of
from fanout.orchestrator.deep_agent.tools.viewing import MAX_IMAGE_BYTES

MAX_CHECKED_CHARACTERS = 256 * 1024
"""The length of a structured result that is compared with its schema; a longer one would take
seconds, and the comparison only adds a note."""

NOT_STRUCTURED = (
    "The tool promises a structured result and gave a text; take the text as its result."
)
NOT_AS_PROMISED = "The result does not match the tool's own schema of its results, at {fault}"


def as_result(
    result: mcp_types.CallToolResult, output_schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an MCP tool's result as `status` with `output`, `result` and `content` where present.

    `output` is text, `result` the structured result, `content` the first image, in the form of
    read_file's, for the model to see. Other media are described in the text.

    Args:
        result: The result.
        output_schema: The tool's schema of its structured results. One that differs counts, with a
            `note`.
    """
    image = _image(result.content)
    text = "\n".join(_text(block) for block in result.content if block is not image)
    structured = result.structured_content
    if result.is_error:
        more = "" if structured is None else json.dumps(structured)
        return error_result(text or more or "The tool failed without a message.")
    found: dict[str, Any] = {"status": "success"}
    if _refers(structured):
        text, structured = "\n".join(filter(None, [text, json.dumps(structured)])), None
    elif structured is not None:
        found["result"] = structured
    if text and not _repeats(text, structured):
        found["output"] = text
    if image is not None:
        found["content"] = {"type": "image", "media_type": image.mime_type, "data": image.data}
    if output_schema is not None and (note := _difference(result, output_schema)):
        found["note"] = note
    return found


def _difference(result: mcp_types.CallToolResult, schema: Mapping[str, Any]) -> str | None:
    """Return a sentence about how a result differs from what its tool promises."""
    structured = result.structured_content
    if structured is None:
        return NOT_STRUCTURED
    if len(json.dumps(structured)) > MAX_CHECKED_CHARACTERS:
        return None
    fault = find_fault(make_validator(schema), structured)
    return None if fault is None else NOT_AS_PROMISED.format(fault=fault)


def _refers(value: Any) -> bool:
    """Return whether a value has a key `$ref`, with which Gemini rejects the whole request."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _text(block: mcp_types.ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes: not shown]"
        case ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource(resource=resource):
            return f"[resource {resource.uri}, {resource.mime_type or 'binary'}: not shown]"


def _image(blocks: Sequence[mcp_types.ContentBlock]) -> ImageContent | None:
    """Return the first valid image; a provider rejects a whole request for an invalid one."""
    for block in blocks:
        if isinstance(block, ImageContent) and len(block.data) * 3 // 4 <= MAX_IMAGE_BYTES:
            try:
                kind = media_type_of(base64.b64decode(block.data, validate=True))
            except (binascii.Error, ValueError):
                continue
            if kind == block.mime_type and kind.startswith("image/"):
                return block
    return None


def _repeats(text: str, structured: Any) -> bool:
    """Return whether a text repeats the structured result, as servers do for older clients."""
    if structured is None:
        return False
    candidates = [structured]
    # The SDK wraps values that are not objects.
    if isinstance(structured, dict) and len(structured) == 1:
        candidates += structured.values()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return value in candidates or text in candidates
