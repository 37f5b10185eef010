"""Files as artifacts of an ADK artifact service: of one session, or of a user across sessions.

Each write is a new version of the file's artifact, and a service keeps all versions until the file
is deleted. A file's size is in its artifact's metadata; an artifact without it is no file of ours,
as after a session's rewind. Changes of one set of files wait for each other within a process;
two processes that create the same file at the same moment get no error.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote
from weakref import WeakValueDictionary

from google.adk.artifacts import BaseArtifactService
from google.genai import types

from .matching import TextSearch
from .protocol import Entry, Hits, Walk

SIZE = "size_bytes"
"""Key of an artifact's metadata; every file has it."""

MIME_TYPE = "application/x-agent-file"
"""Not `application/octet-stream`: with that ADK takes an empty file for a deleted one."""

MAX_AT_ONCE = 16
"""Artifacts whose metadata is asked for at the same time; a service may be on the network."""

_END = "+"
"""Ends each name of a path in an artifact's name: services reserve names such as `versions`."""

LISTED_SECONDS = 5.0
"""How long a write relies on the last list of paths, to refuse a file where a directory is: to list
a thousand artifacts takes a second."""


class _Folder:
    """What the backends of one set of files share in a process."""

    def __init__(self) -> None:
        self.changing = asyncio.Lock()
        self.paths: set[str] = set()
        self.listed_at = -LISTED_SECONDS
        """On `time.monotonic`."""


_folders: WeakValueDictionary[tuple[Any, ...], _Folder] = WeakValueDictionary()


class ArtifactBackend:
    """The files of one session, as artifacts.

    Args:
        service: ADK's artifact service.
        app_name: The name of the ADK app.
        user_id: The user.
        session_id: The session; None for files of the user, which all of their sessions share.
        namespace: The name of this set of files; others do not see them.

    Raises:
        ValueError: The namespace is empty or has a slash.
    """

    search_root = "/"

    def __init__(
        self,
        service: BaseArtifactService,
        *,
        app_name: str,
        user_id: str,
        session_id: str | None = None,
        namespace: str = "files",
    ) -> None:
        if not namespace or "/" in namespace:
            raise ValueError(f"A namespace is one name without a slash, not {namespace!r}.")
        self._service = service
        self._scope: dict[str, Any] = {
            "app_name": app_name,
            "user_id": user_id,
            "session_id": session_id,
        }
        scope = "user:" if session_id is None else ""
        self._prefix = f"{scope}{_encoded(namespace)}"
        key = (id(service), app_name, user_id, session_id, namespace)
        self._folder = _folders.setdefault(key, _Folder())
        self._asking = asyncio.Semaphore(MAX_AT_ONCE)

    async def stat(self, path: str) -> Entry:
        if path != "/":
            entry = await self._file(path)
            if entry is not None:
                return entry
        return await self._directory(path, await self._paths())

    async def list(self, path: str) -> Sequence[Entry]:
        paths = await self._paths()
        if path in paths and await self._file(path) is not None:
            raise NotADirectoryError(path)
        below = path.rstrip("/") + "/"
        names = {name[len(below) :] for name in paths if name.startswith(below)}
        directories = {
            below + name.partition("/")[0]: Entry(
                path=below + name.partition("/")[0], kind="directory"
            )
            for name in names
            if "/" in name
        }
        files = await self._files(below + name for name in names if "/" not in name)
        found = {entry.path: entry for entry in files} | directories
        if not found:
            await self._directory(path, paths)
        return [found[name] for name in sorted(found)]

    async def read_bytes(self, path: str, max_bytes: int, *, offset: int = 0) -> bytes:
        part = None
        if await self._file(path) is not None:
            part = await self._service.load_artifact(**self._scope, filename=self._name(path))
        if part is None or part.inline_data is None:
            await self.stat(path)
            raise IsADirectoryError(path)
        return (part.inline_data.data or b"")[offset : offset + max_bytes]

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        async with self._folder.changing:
            await self._refuse_write(path, create_only=create_only)
            await self._service.save_artifact(
                **self._scope,
                filename=self._name(path),
                artifact=types.Part(inline_data=types.Blob(data=data, mime_type=MIME_TYPE)),
                custom_metadata={SIZE: len(data)},
            )
            self._folder.paths.add(path)

    async def delete(self, path: str) -> None:
        async with self._folder.changing:
            await self.stat(path)
            below = path.rstrip("/") + "/"
            for name in await self._paths():
                if name == path or name.startswith(below):
                    await self._service.delete_artifact(**self._scope, filename=self._name(name))
                    self._folder.paths.discard(name)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        deadline = time.monotonic() + timeout_seconds
        below, paths = path.rstrip("/") + "/", await self._paths()
        names = sorted(
            name
            for name in paths
            if name.startswith(below) and ".git" not in name[len(below) :].split("/")[:-1]
        )
        if not names:
            if path in paths:
                raise NotADirectoryError(path)
            await self._directory(path, paths)
        entries: list[Entry] = []
        for at in range(0, min(len(names), max_entries), MAX_AT_ONCE):
            if entries and time.monotonic() > deadline:
                return Walk(entries=tuple(entries), complete=False)
            entries += await self._files(names[at : min(at + MAX_AT_ONCE, max_entries)])
        return Walk(entries=tuple(entries), complete=len(names) <= max_entries)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        search = TextSearch(text, max_hits=max_hits, deadline=time.monotonic() + timeout_seconds)
        for name in only if only is not None else await self._searched(path):
            if search.is_over:
                break
            part = await self._service.load_artifact(**self._scope, filename=self._name(name))
            data = part.inline_data.data if part and part.inline_data else None
            await asyncio.to_thread(search.file, name, [data or b""])
        return search.result()

    async def _searched(self, path: str) -> Sequence[str]:
        if (await self.stat(path)).kind == "file":
            return [path]
        below = path.rstrip("/") + "/"
        return sorted(
            name
            for name in await self._paths()
            if name.startswith(below) and ".git" not in name[len(below) :].split("/")[:-1]
        )

    async def _paths(self) -> set[str]:
        """Return the paths of all files, of deleted ones in a rewound session too."""
        keys = await self._service.list_artifact_keys(**self._scope)
        begin = self._prefix + "/"
        paths = {_decoded(key[len(begin) :]) for key in keys if key.startswith(begin)}
        self._folder.paths, self._folder.listed_at = paths, time.monotonic()
        return set(paths)

    async def _files(self, paths: Iterable[str]) -> Sequence[Entry]:
        entries = await asyncio.gather(*map(self._file, paths))
        return [entry for entry in entries if entry is not None]

    async def _file(self, path: str) -> Entry | None:
        """Return the entry of a file; None if there is none."""
        async with self._asking:
            version = await self._service.get_artifact_version(
                **self._scope, filename=self._name(path)
            )
        if version is None or SIZE not in version.custom_metadata:
            return None
        return Entry(
            path=path,
            kind="file",
            size_bytes=int(version.custom_metadata[SIZE]),
            modified_at=version.create_time,
        )

    async def _directory(self, path: str, paths: set[str]) -> Entry:
        below = path.rstrip("/") + "/"
        if path == "/" or any(name.startswith(below) for name in paths):
            return Entry(path=path, kind="directory")
        if paths & _parents(path):
            raise NotADirectoryError(path)
        raise FileNotFoundError(path)

    async def _refuse_write(self, path: str, *, create_only: bool) -> None:
        if path != "/" and await self._file(path) is not None:
            if create_only:
                raise FileExistsError(path)
            return
        if time.monotonic() - self._folder.listed_at > LISTED_SECONDS:
            await self._paths()
        paths = self._folder.paths
        if path == "/" or any(name.startswith(path + "/") for name in paths):
            raise FileExistsError(path) if create_only else IsADirectoryError(path)
        if paths & _parents(path):
            raise NotADirectoryError(path)

    def _name(self, path: str) -> str:
        return "/".join([self._prefix, *map(_encoded, path.strip("/").split("/"))])


class StoreBackend(ArtifactBackend):
    """Files of a user across sessions, such as memories: mount it with `CompositeBackend`.

    Args:
        service: ADK's artifact service; a persistent one, such as `FileArtifactService`.
        app_name: The name of the ADK app.
        user_id: The user.
        namespace: The name of this set of files; others do not see them.
    """

    def __init__(
        self, service: BaseArtifactService, *, app_name: str, user_id: str, namespace: str
    ) -> None:
        super().__init__(service, app_name=app_name, user_id=user_id, namespace=namespace)


def _parents(path: str) -> set[str]:
    """Return the directories above a path, without `/`."""
    return {path[:at] for at, character in enumerate(path) if character == "/" and at}


def _encoded(name: str) -> str:
    """Return a name of a path as services take it: they change some characters and names."""
    special = {character: f"%{ord(character):02X}" for character in "%\\:\r\n\t"}
    return "".join(special.get(character, character) for character in name) + _END


def _decoded(key: str) -> str:
    return "".join("/" + unquote(name.removesuffix(_END)) for name in key.split("/"))
