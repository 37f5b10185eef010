"""Images, documents, sounds and films that a model looks at, from a file to the media of a request.

A provider rejects a whole request for one invalid file, so a kind is known by how the file begins,
and not by its name. The session stores the result with the image as base64, which in a request
would be megabytes of text that no model can see as an image. So requests, and only they, have the
image as media in a separate message after the results: not every provider accepts media in a tool's
result, and one request may be sent to several.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from ..failures import ModelRefused, ToolMistake
from ..messages import with_response
from ..middleware import Middleware
from ..models.facts import takes_inline
from ..prompts import IMAGES_LEFT_OUT
from ..unusable_replies import IMAGES_REFUSED, as_placeholder_call
from .documents import MAX_DOCUMENT_BYTES
from .files import Files

MAX_IMAGE_BYTES = 3_750_000
"""The largest file that is shown unchanged: 5 MB in base64, the smallest limit on an image among
the model providers."""

_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"\xff\xf3": "audio/mpeg",
    b"\xff\xf1": "audio/aac",
    b"\xff\xf9": "audio/aac",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
    b"\x1aE\xdf\xa3": "video/webm",
    b"\x00\x00\x01\xba": "video/mpeg",
}
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/avi"}
_FTYP = {b"M4A ": "audio/mp4", b"qt  ": "video/quicktime"}

MEDIA_ENDINGS = frozenset(
    {
        *(".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"),
        *(".mp3", ".aac", ".flac", ".ogg", ".oga", ".wav", ".m4a"),
        *(".mp4", ".mov", ".webm", ".mpg", ".mpeg", ".avi"),
    }
)
"""The endings of such files' names."""

SENSES = {"audio": "listen to", "video": "watch", "image": "look at", "document": "look at"}
"""What a model does with each kind."""

MAX_IMAGES_IN_VIEW = 3
"""The newest images in one request: three of the largest, in base64, stay below Gemini's 20 MB."""

OUT_OF_VIEW = "not shown any more: read the file again to look at it"
IN_VIEW = "{kind} {number}, shown in the next message"
REFUSED = "left out: the request that showed it was refused"
NOT_VIEWABLE = "this model cannot look at this kind of {kind}"


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
    media_type = detect_media_type(data)
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


def detect_media_type(data: bytes) -> str | None:
    """Return the media type of an image, a PDF, a sound or a film; None for anything else."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _FTYP.get(data[8:12], "video/mp4")
    return next((kind for begin, kind in _BEGINNINGS.items() if data.startswith(begin)), None)


def kind_of(media_type: str) -> str:
    """Return `image`, `audio`, `video` or `document`."""
    kind = media_type.partition("/")[0]
    return "document" if kind == "application" else kind


class ImagesInView(Middleware):
    """Shows the model the images in tool results."""

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Replace base64 by media, and older images by a note; the session is unchanged."""
        del callback_context
        contents = llm_request.contents
        total, refused = _count(contents), _count(contents[: _last_rejected(contents)])
        if total:
            first = total - MAX_IMAGES_IN_VIEW + 1
            llm_request.contents = list(_in_view(contents, first, refused, llm_request.model or ""))
        return None

    async def on_model_error(
        self, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Continue without the images after a request with images was rejected.

        A valid header does not guarantee that a provider can read the whole image.
        """
        del callback_context
        contents = llm_request.contents
        # Images from before the last rejection are the user's own, and remain.
        parts = (
            part for content in contents[_last_rejected(contents) :] for part in content.parts or []
        )
        if not isinstance(error, ModelRefused) or not any(part.inline_data for part in parts):
            return None
        return as_placeholder_call(LlmResponse(), IMAGES_REFUSED, IMAGES_LEFT_OUT)


def find_media(response: Any) -> dict[str, str] | None:
    """Return the image, document, sound or film in a tool's result, or None."""
    content = response.get("content") if isinstance(response, dict) else None
    if isinstance(content, dict) and content.get("type") in SENSES:
        return content if isinstance(content.get("data"), str) else None
    return None


def _images(content: types.Content) -> Sequence[dict[str, str] | None]:
    """Return the image of each part, or None."""
    answers = (part.function_response for part in content.parts or [])
    return [find_media(answer.response) if answer else None for answer in answers]


def _count(contents: Sequence[types.Content]) -> int:
    return sum(image is not None for content in contents for image in _images(content))


def _last_rejected(contents: Sequence[types.Content]) -> int:
    """Return the index of the last request that was rejected for its images; 0 if there is none.

    The images before it are not sent again.
    """
    for at in range(len(contents) - 1, -1, -1):
        calls = (part.function_call for part in contents[at].parts or [])
        if any(call is not None and call.name == IMAGES_REFUSED for call in calls):
            return at
    return 0


def _in_view(
    contents: Sequence[types.Content], first: int, refused: int, model: str
) -> Iterator[types.Content]:
    """Yield the contents with a note in place of each image, followed by messages with the media.

    Args:
        contents: The contents of a request.
        first: The number of the first image to show, counted from 1.
        refused: How many of the first images were rejected.
        model: The model's name.
    """
    numbers = count(1)
    for content in contents:
        images = _images(content)
        if not any(images):
            yield content
            continue
        parts, media = [], list[types.Part]()
        for part, image in zip(content.parts or [], images, strict=True):
            if image is None:
                parts.append(part)
                continue
            number = next(numbers)
            shown: list[types.Part] | str
            if number <= refused:
                shown = REFUSED
            else:
                shown = OUT_OF_VIEW if number < first else _media(image, number, model)
            note = (
                shown
                if isinstance(shown, str)
                else IN_VIEW.format(kind=image["type"], number=number)
            )
            parts.append(_with_note(part, image, note))
            media += [] if isinstance(shown, str) else shown
        yield types.Content(role=content.role, parts=parts)
        if media:
            yield types.Content(role="user", parts=media)


def _media(image: dict[str, str], number: int, model: str) -> list[types.Part] | str:
    """Return an image with its label, or a note on why it cannot be shown."""
    kind = image.get("media_type", "")
    if (kind == "image/gif" and "gemini" in model) or not takes_inline(model, kind):
        return NOT_VIEWABLE.format(kind=image["type"])
    try:
        data = base64.b64decode(image["data"], validate=True)
    except (binascii.Error, ValueError):
        return NOT_VIEWABLE.format(kind=image["type"])
    blob = types.Blob(data=data, mime_type=kind)
    return [
        types.Part(text=f"{image['type'].capitalize()} {number}, from a tool's result:"),
        types.Part(inline_data=blob),
    ]


def _with_note(part: types.Part, image: dict[str, str], note: str) -> types.Part:
    """Return the result with a note in place of the base64."""
    answer = part.function_response or types.FunctionResponse()
    content = {"type": image["type"], "media_type": image.get("media_type", ""), "note": note}
    return with_response(part, {**(answer.response or {}), "content": content})
