"""A folder whose changes are written beside their targets, and put in place later."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from fanout.orchestrator.workspace.dry_run import DryRun
from fanout.orchestrator.workspace.rooted import ChangedMeanwhile, Found, Identity
from fanout.orchestrator.workspace.staging.failures import raise_if_storage
from fanout.orchestrator.workspace.staging.staging import Staging
from fanout.orchestrator.workspace.staging.steps import Do, Step


class StagedFolder(DryRun):
    """The target of one merge: `steps` puts in place what was put into it.

    A new directory is staged with all that is in it, so that putting it in place is one rename.

    Args:
        staging: Creates the staged entries.
    """

    def __init__(self, staging: Staging) -> None:
        super().__init__(staging.folder)
        self._staging = staging
        self._real = staging.folder
        self._staged: dict[str, str] = {}
        """Path -> where its new entry is staged."""
        self._names: set[str] = set()
        self._seen: dict[str, Identity | None] = {}
        """Path -> the identity of the entry that is about to be replaced or removed."""
        self._group = ""
        self.steps: list[Step] = []
        self.files: set[str] = set()
        """The staged files; some may have been removed again."""

    def begin_group(self, path: str) -> None:
        """Begin the steps of the change of a path."""
        self._group = path

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory, after the changes so far."""
        return super().names(path) - self._names

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Plan the change of a file's permission bits."""
        self._expect(path, instead_of)
        self._changes[path] = replace(instead_of, mode=mode)
        if instead_of.identity:
            self._plan("mode", path, expected=instead_of.identity, mode=mode)

    def _expect(self, path: str, found: Found | None) -> None:
        """Compare without reading the file again, and note what the merge has seen."""
        if self._is_changed(path):
            super()._expect(path, found)
            return
        seen = None if found is None else found.identity
        if self._real.identity(path) != seen:
            raise ChangedMeanwhile
        self._seen[path] = seen

    def _record(self, path: str, found: Found | None) -> None:
        try:
            if found is None:
                self._remove(path)
            else:
                self._stage(path, found)
        except OSError as error:
            raise_if_storage(error)
            raise
        # The content is on the disk now: what is in memory does not depend on a bundle's size.
        self._changes[path] = None if found is None else replace(found, content=None)

    def _stage(self, path: str, found: Found) -> None:
        """Write a new entry, in its staged directory or beside its target."""
        directory, name = posixpath.split(path)
        above, seen = self._staged.get(directory), self._seen.pop(path, None)
        place = self._staged.get(path) or (f"{above}/{name}" if above else None)
        if path in self._staged:
            self._real.discard(self._staged[path])
        if place is None:
            place = self._staging.reserve(directory)
            staged = posixpath.basename(place)
            self._names.add(staged)
            self._plan("put", path, staged=staged, expected=seen)
        if found.kind == "directory":
            self._real.create_directory(place, found.mode)
        elif found.kind == "symlink":
            self._real.create_link(place, found.content or b"")
        else:
            replaced = name if seen is not None else None
            self._real.create_file(place, found.content or b"", found.mode, replaced)
            self.files.add(place)
        self._staged[path] = place

    def _remove(self, path: str) -> None:
        seen = self._seen.pop(path, None)
        if path in self._staged:
            self._real.discard(self._staged.pop(path))
            self.steps = [step for step in self.steps if (step.do, step.path) != ("put", path)]
            return
        self._real.require_writable(path)
        if seen is None:
            self._plan("remove_directory", path)
        else:
            self._plan("remove", path, expected=seen)

    def _plan(
        self,
        do: Do,
        path: str,
        *,
        staged: str | None = None,
        expected: Identity | None = None,
        mode: int = 0,
    ) -> None:
        step = Step(
            do=do, path=path, group=self._group, staged=staged, expected=expected, mode=mode
        )
        self.steps.append(step)
