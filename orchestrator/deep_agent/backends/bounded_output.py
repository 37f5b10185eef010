"""A stream of output of which the beginning and the end are kept."""

from __future__ import annotations


class BoundedOutput:
    """Head and tail of a stream, and the length of the whole.

    Holds little more than its limits, however much is added. Containers run a copy of this class in
    `workers/sandbox/inside/commands.py`: what is shipped into them imports nothing from here, since
    every start of a sandbox would pay for the packages on the way.
    """

    def __init__(self, *, head_bytes: int = 0, tail_bytes: int) -> None:
        self.total_bytes = 0
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes

    @classmethod
    def halves(cls, max_bytes: int) -> BoundedOutput:
        """Return a buffer that keeps `max_bytes`, half of them from the beginning."""
        return cls(head_bytes=max_bytes // 2, tail_bytes=max_bytes - max_bytes // 2)

    def add(self, data: bytes) -> None:
        """Append data; what belongs neither to the head nor to the tail is dropped."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes + (64 << 10):  # so that few additions move bytes
            del self._tail[: len(self._tail) - self._tail_bytes]

    def content(self) -> bytes:
        """Return everything, or the head and the tail."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._tail_bytes) :])
