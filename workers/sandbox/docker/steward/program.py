"""The steward's program: its code, which is copied into its container, and its command."""

from __future__ import annotations

import hashlib
import io
import tarfile
from functools import cache

from fanout.workers.sandbox.inside.archives import add_member
from fanout.workers.sandbox.resident.code import code_files

STORE = "/store"
"""The path of the volume for the steward."""


_PYTHON = ("python3", "-ISB")


def steward_command(cache_bytes: int, reserve_bytes: int) -> list[str]:
    """Return the command of a steward.

    Args:
        cache_bytes: the limit on unpacked snapshots that no job uses.
        reserve_bytes: the free space that the engine's disk keeps.
    """
    _, identity = steward_code()
    sizes = (str(cache_bytes), str(reserve_bytes))
    return [*_PYTHON, "/opt/steward", STORE, *sizes, "/opt/resident", identity]


@cache
def steward_code() -> tuple[bytes, str]:
    """Return a tar of the steward's and the resident's code, and the latter's version."""
    code = code_files()
    identity = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:16]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder, files in (("steward", code_files("steward")), ("resident", code)):
            for path, content in files.items():
                add_member(archive, f"{folder}/{path}", content, len(content))
    return buffer.getvalue(), identity
