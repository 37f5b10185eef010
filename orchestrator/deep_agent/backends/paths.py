"""The rules for paths that the file tools accept, the same for every backend.

A path is a path text (`orchestrator.path_text`): a backend on real files converts it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any

from fanout.orchestrator.deep_agent.backends.protocol import AccessRefused, Backend
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.path_text import normal_path_text, path_bytes

MAX_PATH_CHARACTERS = 4_096
"""PATH_MAX of Linux, its final NUL included."""

MAX_NAME_BYTES = 255
"""NAME_MAX of every common file system."""

MAX_DEPTH = 200
"""Nested directories: each takes a descriptor or a stack frame during a walk, and no source tree is
so deep."""

_DRIVE = re.compile(r"^[A-Za-z]:")


def checked(path: str, root: str | None = None) -> str:
    """Return the normalised absolute path, as its one path text.

    Args:
        path: The path as it was given.
        root: The directory that a relative path is below, normalised; None refuses relative paths.

    Raises:
        ToolMistake: The tools do not accept the path; the message says why.
    """
    if not path.strip():
        raise ToolMistake(f"The path is empty. Give a path below {root or '/'}.")
    if "\0" in path or len(path) >= MAX_PATH_CHARACTERS:
        raise ToolMistake(
            f"Not a valid path: a path has at most {MAX_PATH_CHARACTERS - 1} characters, no NUL."
        )
    if path.startswith("~") or ".." in re.split(r"[/\\]", path):
        raise ToolMistake(f"Path traversal not allowed: {path}")
    if _DRIVE.match(path):
        raise ToolMistake(
            f"Windows paths are not supported: {path}. Give a path below {root or '/'}."
        )
    path = normal_path_text(path)
    if root is None and not path.startswith("/"):
        raise ToolMistake(f"The path must be absolute: {path}.")
    normal = posixpath.normpath("/" + posixpath.join(root or "/", path).lstrip("/"))
    if any(len(name) > MAX_NAME_BYTES for name in path_bytes(normal).split(b"/")):
        raise ToolMistake(f"A name in the path is longer than {MAX_NAME_BYTES} bytes.")
    if normal.count("/") > MAX_DEPTH:
        raise ToolMistake(f"Not a valid path: it has more than {MAX_DEPTH} names.")
    return normal


async def real_path(backend: Backend, path: str) -> str:
    """Return a path of a backend with its links resolved, as far as it exists.

    Raises:
        AccessRefused: The backend cannot tell where a link leads.
    """
    own: Any = getattr(backend, "real_path", None)
    if own is not None:
        resolved: str = await own(path)
        return resolved
    names = [name for name in path.split("/") if name]
    for depth in range(len(names)):
        parent = "/" + "/".join(names[:depth])
        here = posixpath.join(parent, names[depth])
        try:
            entries = await backend.list(parent)
        except OSError:
            break
        if any(entry.path == here and entry.kind == "symlink" for entry in entries):
            raise AccessRefused(f"{here} is a link, and rules hold for these files: name the file.")
    return path


def search_roots(backend: Backend) -> Sequence[str]:
    """Return the directories that hold all files of an agent; the first is the search root."""
    return [backend.search_root, *getattr(backend, "other_roots", ())]
