"""Removes texts from a stream of bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MASK = b"*"


class Redactor:
    """Replaces each occurrence of some texts by as many asterisks, across parts of a stream.

    The size of the stream stays the same. The end of a part that may be the beginning of a text is
    held back until more has come.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Make a redactor.

        Args:
            texts: at least one, none of them empty.
        """
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._beginnings = {text[:size] for text in texts for size in range(1, len(text))}
        self._longest = max(map(len, texts)) - 1
        self._rest = b""
        self.found = 0
        """How many occurrences were replaced."""

    def feed(self, data: bytes) -> bytes:
        """Add a part, and return what can be passed on."""
        data = self.redact(self._rest + data)
        sizes = range(min(self._longest, len(data)), 0, -1)
        held = next((size for size in sizes if data[-size:] in self._beginnings), 0)
        self._rest = data[len(data) - held :]
        return data[: len(data) - held]

    def finish(self) -> bytes:
        """Return what was held back."""
        rest, self._rest = self._rest, b""
        return rest

    def redact(self, data: bytes) -> bytes:
        """Return a whole text without the occurrences."""
        return self._pattern.sub(self._mask, data)

    def _mask(self, match: re.Match[bytes]) -> bytes:
        self.found += 1
        return _MASK * len(match[0])
