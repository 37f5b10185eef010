"""A request to a resident: which frames may still be received for it."""

from __future__ import annotations

import asyncio

from fanout.workers.sandbox.errors import SandboxDied
from fanout.workers.sandbox.inside import frames

Frame = tuple[int, bytes, bytes]
"""Kind, header and payload."""


class Exchange:
    """A request and what may still be received for it."""

    def __init__(self, *, takes_parts: bool, max_reply_bytes: int) -> None:
        self.frames: asyncio.Queue[Frame | SandboxDied] = asyncio.Queue()
        self.parts_left = frames.CHUNKS_IN_FLIGHT if takes_parts else 0
        """How many parts may come before one of them is acknowledged."""
        self.max_reply_bytes = max_reply_bytes
        self.is_abandoned = False
        """Nobody waits for it: what still comes is dropped."""

    def check(self, kind: int, header_bytes: int, payload_bytes: int) -> None:
        """Raise FrameError unless a frame of this kind and size may come."""
        if kind == frames.MORE:
            allowed = self.parts_left > 0 and not header_bytes
            allowed = allowed and payload_bytes <= frames.CHUNK_BYTES
        else:
            allowed = header_bytes <= frames.MAX_REPLY_HEADER_BYTES
            allowed = allowed and payload_bytes <= self.max_reply_bytes
        if not allowed:
            raise frames.FrameError("more than was requested or acknowledged")

    def receive(self, kind: int, header: bytes, payload: bytes) -> None:
        """Take a frame that passed `check`."""
        if kind == frames.MORE:
            self.parts_left -= 1
        if not self.is_abandoned:
            self.frames.put_nowait((kind, header, payload))
