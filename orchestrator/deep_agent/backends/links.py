"""Where a path leads when its links are followed."""

from __future__ import annotations

import posixpath
from typing import Any

from fanout.orchestrator.deep_agent.backends.protocol import AccessRefused, Backend


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
