"""The prepared environments of a store. Standard library only: see `steward`.

An environment is the lowest folder of a job's overlay: what a set-up has made. It lies among the
snapshots, so that it is shown to jobs as those are, and is never changed again:

snapshots/e<key>/tree         what the set-up made
snapshots/e<key>/environment  a JSON record of it; the file's time is its last use
environments/<key>            the lock of the steward whose worker prepares it

A folder appears at once and whole, so whoever is killed leaves none half-made. A lock ends with its
steward, and a steward with its worker.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import archives, disks
from .loop import OperationRefused
from .snapshots import give_to_agent, make_agents_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

_KEY = re.compile(r"[0-9a-f]{64}")
LISTED = 100
"""The most environments in one list: their records fit a reply's header."""


class EnvironmentStore:
    """The environments of one store."""

    def __init__(
        self, snapshots: Path, locks: Path, *,
        scratch: Callable[[], Path], discard: Callable[[Path], object],
        locked: Callable[[], AbstractContextManager[None]], in_use: Callable[[], set[str]],
    ) -> None:  # fmt: skip
        """Make it without I/O.

        Args:
            snapshots: the folder that has them.
            locks: the folder with the locks.
            scratch: returns a new path on the same disk.
            discard: lets a folder disappear at once, and deletes it.
            locked: excludes other stewards, and other threads of this one.
            in_use: returns the keys of those that jobs use.
        """
        self._snapshots, self._locks = snapshots, locks
        self._scratch, self._discard = scratch, discard
        self._locked, self._in_use = locked, in_use
        self._claims: dict[str, int] = {}
        self._claiming = threading.Lock()

    def tree(self, key: str) -> Path | None:
        """Return the folder with an environment's files, and mark it as used; None: it is missing.

        The caller excludes others.
        """
        home = self._home(key)
        if not home.exists():
            return None
        os.utime(home / "environment")
        return home / "tree"

    def claim(self, key: str) -> str:
        """Return `ready`; `claimed`: this worker may prepare it; or `busy`: another one does."""
        home = self._home(key)
        with self._claiming:
            if home.exists():
                return "ready"
            if key in self._claims:
                return "busy"
            lock = os.open(self._locks / key, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return "busy"
            self._claims[key] = lock
        if home.exists():  # the one that prepared it was faster
            self.release(key)
            return "ready"
        return "claimed"

    def release(self, key: str) -> None:
        """Give up a claim, if it is held."""
        with self._claiming:
            lock = self._claims.pop(key, None)
            if lock is not None:
                with suppress(FileNotFoundError):
                    (self._locks / key).unlink()
                os.close(lock)

    def check_claim(self, key: str) -> None:
        """Check that this worker may prepare an environment.

        Raises:
            OperationRefused: it may not, any more.
        """
        if key not in self._claims:
            raise OperationRefused("NotClaimed", "another worker prepares the environment")

    def install(self, key: str, archive: Path, record: dict[str, Any]) -> int:
        """Unpack the archive of an environment, and let it appear; return its bytes.

        Args:
            key: of a claim that is held.
            archive: what the set-up made; not trusted.
            record: what is kept of it.

        Raises:
            UnusableArchive: the archive has more folders than it may have.
        """
        fresh = self._scratch()
        try:
            fresh.mkdir()
            make_agents_folder(fresh / "tree")
            archives.unpack(archive, fresh / "tree", give_to_agent)
            size = disks.walked_bytes(fresh / "tree")
            made = {**record, "bytes": size, "made_at": int(time.time())}
            (fresh / "environment").write_text(json.dumps(made))
            with self._locked(), suppress(OSError):  # another one may have made it
                fresh.rename(self._home(key))
        finally:
            if fresh.exists():
                self._discard(fresh)
        return size

    def has(self, key: str) -> bool:
        """Return whether there is one of this key."""
        return self._home(key).exists()

    def page(self, after: str) -> list[dict[str, Any]]:
        """Return the first records, in the order of their keys, that come after one."""
        found = sorted(self._all(), key=lambda each: str(each["key"]))
        return [each for each in found if each["key"] > after][:LISTED]

    def _all(self) -> list[dict[str, Any]]:
        """Return all records, each with its key, its last use, and whether jobs use it."""
        used = self._in_use()
        found = []
        for file in self._snapshots.glob("e*/environment"):
            key = file.parent.name[1:]
            with suppress(OSError, ValueError):  # it is being removed
                record = json.loads(file.read_text())
                times = {"used_at": int(file.stat().st_mtime), "in_use": key in used}
                found.append({**record, **times, "key": key})
        return found

    def remove(
        self, keys: Collection[str] | None, unused_seconds: float, most_bytes: int
    ) -> list[str]:
        """Remove environments that no job uses; return their keys.

        Args:
            keys: these; None: those below.
            unused_seconds: that were not used for so long.
            most_bytes: and the longest unused ones of what remains above that size.
        """
        removed = []
        with self._locked():
            found = sorted(self._all(), key=lambda each: int(each["used_at"]))
            left_bytes = sum(each["bytes"] for each in found)
            before = time.time() - unused_seconds
            for each in found:
                is_due = each["used_at"] < before or left_bytes > most_bytes
                if not each["in_use"] and (is_due if keys is None else each["key"] in keys):
                    self._discard(self._home(each["key"]))
                    left_bytes -= each["bytes"]
                    removed.append(each["key"])
        return removed[:LISTED]

    def _home(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError("the key of an environment is 64 hexadecimal digits")
        return self._snapshots / f"e{key}"
