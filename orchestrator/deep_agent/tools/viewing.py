"""Files that a model looks at or listens to instead of reading their text."""

from __future__ import annotations

import base64
from collections.abc import Callable

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.documents import MAX_DOCUMENT_BYTES
from fanout.orchestrator.deep_agent.tools.files import Files
from fanout.orchestrator.deep_agent.tools.media import SENSES, kind_of, media_type_of

MAX_IMAGE_BYTES = 3_750_000
"""Of any file that is shown as it is: 5 MB in base64, the smallest limit on an image among the
model providers."""


async def media_content(
    files: Files, path: str, offset: int, limit: int, *, takes: Callable[[str], bool]
) -> dict[str, str] | str | None:
    """Return a file for the model to look at, or a PDF's text; None if it is another kind.

    Then only its name is an image's, as for a pointer of Git LFS.

    Args:
        files: Where it is.
        path: Its path.
        offset: How many lines of a PDF's text to skip; a PDF is shown as it is without an offset.
        limit: How many lines of it to return.
        takes: Whether the model takes files of a media type.

    Raises:
        ToolMistake: It is too large, or of a kind that this model does not take.
    """
    most = MAX_DOCUMENT_BYTES if path.lower().endswith(".pdf") else MAX_IMAGE_BYTES
    data = await files.read_bytes(path, most)
    media_type = media_type_of(data)
    if media_type is None:
        return None
    is_taken = takes(media_type)
    is_pdf = media_type == "application/pdf"
    if is_pdf and (offset or not is_taken or len(data) > MAX_IMAGE_BYTES):
        return (await files.read_pdf(path, data, offset, limit)).content
    kind = kind_of(media_type)
    if not is_taken:
        raise ToolMistake(
            f"{path} is {media_type}, which this model cannot {SENSES[kind]}. Convert it to text "
            "with a program, if you have a shell."
        )
    encoded = base64.b64encode(data).decode()
    return {"type": kind, "media_type": media_type, "data": encoded}
