"""The kinds of files that a model looks at or listens to, by how they begin.

A provider rejects a whole request for one invalid file, so a name is not enough.
"""

from __future__ import annotations

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


def media_type_of(data: bytes) -> str | None:
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
