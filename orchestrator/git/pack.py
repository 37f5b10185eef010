"""A Git pack, which holds the objects of a repository in one file, and its index."""

from __future__ import annotations

import hashlib
import struct
import zlib
from io import BufferedRandom
from itertools import accumulate
from typing import NamedTuple

from fanout.orchestrator.git.process import GitFailed

_TYPES = {b"tree": 2, b"blob": 3}
_MAX_BYTES = 2**31
"""Of a pack whose index has short offsets: four times what a change bundle carries."""


class _Entry(NamedTuple):
    sha256: bytes
    """Of the object."""
    checksum: int
    offset: int


class Pack:
    """A pack that is being written. Its objects are not compressed.

    Args:
        file: An empty file, open for reading and writing; stays the caller's.
    """

    def __init__(self, file: BufferedRandom) -> None:
        self._file = file
        self._entries: dict[bytes, _Entry] = {}
        self._file.write(_header(0))

    def add(self, kind: bytes, content: bytes) -> bytes:
        """Add an object, unless it is there, and return its id.

        Args:
            kind: `blob` or `tree`.
            content: What it holds.

        Raises:
            GitFailed: The pack is full, or two objects have one id: somebody has constructed them,
                and what one of them holds would be taken for the other's.
        """
        head = b"%s %d\0" % (kind, len(content))
        digest, proof = hashlib.sha1(head, usedforsecurity=False), hashlib.sha256(head)
        digest.update(content)
        proof.update(content)
        identity, known = digest.digest(), self._entries.get(digest.digest())
        if known is None:
            self._entries[identity] = self._write(kind, content, proof.digest())
        elif known.sha256 != proof.digest():
            raise GitFailed("two different files have one object id")
        return identity

    def close(self) -> bytes:
        """Complete the pack, and return its index."""
        self._file.seek(0)
        self._file.write(_header(len(self._entries)))
        self._file.seek(0)
        checksum = hashlib.file_digest(self._file, _sha1).digest()
        self._file.write(checksum)
        ordered = sorted(self._entries.items())
        counts = [0] * 256
        for identity, _ in ordered:
            counts[identity[0]] += 1
        index = b"\xfftOc" + struct.pack(">I256I", 2, *accumulate(counts))
        index += b"".join(identity for identity, _ in ordered)
        index += b"".join(struct.pack(">I", entry.checksum) for _, entry in ordered)
        index += b"".join(struct.pack(">I", entry.offset) for _, entry in ordered)
        index += checksum
        return index + _sha1(index).digest()

    def _write(self, kind: bytes, content: bytes, sha256: bytes) -> _Entry:
        offset = self._file.tell()
        if offset + len(content) >= _MAX_BYTES:
            raise GitFailed("the files are too large for a patch")
        size, first = len(content) >> 4, _TYPES[kind] << 4 | len(content) & 15
        head = bytearray()
        while size:
            head.append(first | 0x80)
            size, first = size >> 7, size & 0x7F
        head.append(first)
        stored = zlib.compressobj(0)
        checksum = 0
        for part in (head, stored.compress(content), stored.flush()):
            checksum = zlib.crc32(part, checksum)
            self._file.write(part)
        return _Entry(sha256, checksum, offset)


def _header(objects: int) -> bytes:
    return struct.pack(">4sII", b"PACK", 2, objects)


def _sha1(content: bytes = b"") -> hashlib._Hash:
    return hashlib.sha1(content, usedforsecurity=False)
