"""Results of MCP tools, in the form of our tools' results."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import mcp_types
from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

from fanout.orchestrator.deep_agent.tool import error_result
from fanout.orchestrator.deep_agent.tools.media import media_type_of
from fanout.orchestrator.deep_agent.tools.viewing import MAX_IMAGE_BYTES


def as_result(result: mcp_types.CallToolResult) -> dict[str, Any]:
    """Return an MCP tool's result as `status` with `output`, `result` and `content` where present.

    `output` is text, `result` the structured result, `content` the first image, in the form of
    read_file's, for the model to see. Other media are described in the text.
    """
    image = _image(result.content)
    text = "\n".join(_text(block) for block in result.content if block is not image)
    if result.is_error:
        return error_result(text or "The tool failed without a message.")
    found: dict[str, Any] = {"status": "success"}
    structured = result.structured_content
    if structured is not None:
        found["result"] = structured
    if text and not _repeats(text, structured):
        found["output"] = text
    if image is not None:
        found["content"] = {"type": "image", "media_type": image.mime_type, "data": image.data}
    return found


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
    except ValueError:
        value = text
    return value in candidates or text in candidates
