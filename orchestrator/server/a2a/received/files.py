"""Files that a message brings, as those of the job's workspace."""

from __future__ import annotations

import mimetypes

from a2a.types import Message
from a2a.utils.errors import InvalidParamsError

MAX_FILES = 1_000
"""Of one message: more are sent as an archive to `/v1/snapshots`."""


def files_of(message: Message) -> dict[str, bytes]:
    """Return the contents of the files of a message, by path.

    A file without a name gets one. Whether paths stay in the workspace is checked where the files
    are written.

    Raises:
        InvalidParamsError: Two files have one name, or there are too many.
    """
    found: dict[str, bytes] = {}
    for number, part in enumerate(message.parts, 1):
        if not part.HasField("raw"):
            continue
        ending = mimetypes.guess_extension(part.media_type) or "" if part.media_type else ""
        name = part.filename or f"file-{number}{ending}"
        if name in found:
            raise InvalidParamsError("Two files of the message have the same name.")
        found[name] = part.raw
    if len(found) > MAX_FILES:
        raise InvalidParamsError(f"A message has at most {MAX_FILES:,} files.")
    return found
