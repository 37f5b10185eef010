"""What an MCP tool returned, as a tool's result here."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import mcp_types
from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

from orchestrator.deep_agent.tool import error_result
from orchestrator.deep_agent.tools.filesystem import MAX_IMAGE_BYTES
from orchestrator.deep_agent.tools.images import media_type_of


def as_result(result: mcp_types.CallToolResult) -> dict[str, Any]:
    """`status`, and as far as there is any.

    `output` (text), `result` (structured), `content` (an image).

    The first image is given as S2 gives images, for the model to look at; everything else that is
    no text is named in the text.
    """
    image = _image(result.content)
    text = "\n".join(_text(block) for block in result.content if block is not image)
    if result.is_error:
        return error_result(text or "The tool failed and did not say why.")
    found: dict[str, Any] = {"status": "success"}
    structured = result.structured_content
    if structured is not None:
        found["result"] = structured
    if text and not _says_the_same(text, structured):
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
    """The first block that a model can be shown.

    A provider refuses a request for one that is no image.
    """
    for block in blocks:
        if isinstance(block, ImageContent) and len(block.data) * 3 // 4 <= MAX_IMAGE_BYTES:
            try:
                kind = media_type_of(base64.b64decode(block.data, validate=True))
            except (binascii.Error, ValueError):
                continue
            if kind == block.mime_type:
                return block
    return None


def _says_the_same(text: str, structured: Any) -> bool:
    """Servers repeat a structured result as text for clients that do not know of the former."""
    if structured is None:
        return False
    candidates = [structured]
    if isinstance(structured, dict) and len(structured) == 1:  # the SDK wraps what is no object
        candidates += structured.values()
    try:
        told = json.loads(text)
    except ValueError:
        told = text
    return told in candidates or text in candidates
