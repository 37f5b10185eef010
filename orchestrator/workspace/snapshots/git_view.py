"""What Git says about the folders of a snapshot: the files that it ignores, and where its data is.

Data that is completely in the workspace is carried unchanged; of other repositories a snapshot
carries a copy (`repositories/self_contained.py`). If there can be no copy, the files are still
carried, with a sentence that Git does not work in them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ..repositories.configuration import RepositoryUnreadable, read_data
from ..repositories.git_data import carried_link
from ..repositories.repository import (
    LeadsNowhere,
    Repository,
    enclosing_repository,
    ignored_by_rules,
    ignored_paths,
    is_submodule,
)
from ..repositories.self_contained import (
    DataCopies,
    DataCopy,
    find_limits,
    is_self_contained,
)


@dataclass(frozen=True)
class Seen:
    """The result of a search in a folder, before Git is asked."""

    repository: Repository | None = None
    """The folder's repository; None: it is in none, or in one that cannot be read."""
    problem: str | None = None
    """Why the folder's own repository cannot be read."""


@dataclass
class GitView:
    """The repositories of one folder and of those in it.

    Args:
        root: The folder.
        copies: Makes copies of data outside of the folder; None: such data is never read, because
            the files are not trusted.
    """

    root: Path
    copies: DataCopies | None
    limits: list[str] = field(default_factory=list)
    """What Git cannot do with the files, a sentence each."""
    copied: dict[str, Path] = field(default_factory=dict)
    """Folder of a repository's data in the snapshot -> where its copy is."""
    not_carried: set[str] = field(default_factory=set)
    """Folders whose own `.git` is not carried."""

    def look(self, path: str) -> Seen:
        """Find the repository of a folder; Git is not asked.

        Raises:
            RepositoryUnreadable: There is one, and its data cannot be read.
        """
        place = (self.root / path).resolve()
        try:
            repository = enclosing_repository(place)
        except LeadsNowhere as error:
            self.not_carried.add(path)
            return Seen(problem=str(error))
        if repository is not None and self.copies is None and not self._is_inside(repository):
            self.not_carried.add(path)
            if repository.work_tree == place:
                return Seen(problem="its .git leads out of the folder")
        if repository is None:
            is_broken = not path and os.path.lexists(place / ".git")
            return Seen(problem=f"{place / '.git'} is no repository" if is_broken else None)
        if not self._is_carried(repository, place):
            self.not_carried.add(path)
        return Seen(repository)

    def ignored(self, path: str, seen: Seen) -> frozenset[str] | None:
        """Return the paths in a folder, relative to it, that its repository ignores.

        Its data is copied, if that is necessary.

        Args:
            path: The folder.
            seen: What was found there.

        Returns:
            None if it is in no repository, or in one that ignores the folder itself.

        Raises:
            RepositoryUnreadable: Git is missing or failed.
        """
        place, repository = (self.root / path).resolve(), seen.repository
        if seen.problem is not None:
            self.say(path, seen.problem)
            return ignored_by_rules(place)
        if repository is None:
            return None
        found = ignored_paths(repository, place)
        if path not in self.not_carried:
            limit = find_limits(repository) if repository.work_tree == place else None
            self.limits += [limit] if limit else []
        elif found is not None:
            self._copy(path, place, repository)
        return found

    def is_listed_above(self, path: str, problem: str | None) -> bool:
        """Return whether the repository around a folder lists its files, as if it had no `.git`."""
        if problem is None:
            return False
        try:
            above = enclosing_repository((self.root / path).resolve().parent)
            return above is not None and not is_submodule(above, self.root / path)
        except RepositoryUnreadable:
            return False

    def _copy(self, path: str, place: Path, repository: Repository) -> None:
        data = f"{path}/.git" if path else ".git"
        try:
            copy = self._copied(place, repository)
        except RepositoryUnreadable as error:
            self.say(path, str(error))
            if (place / ".git").is_dir() and not (place / ".git").is_symlink():
                self.not_carried.discard(path)  # its own data
            return
        if copy is not None:
            self.copied[data] = copy.folder
            self.limits += [copy.note] if copy.note else []

    def _copied(self, place: Path, repository: Repository) -> DataCopy | None:
        if repository.git_dir != repository.common_dir and self._is_inside(repository):
            raise RepositoryUnreadable(
                "it is a linked work tree of another repository in the workspace"
            )
        if self.copies is not None:
            return self.copies.copy(repository, place)
        if repository.work_tree != place:
            return None
        raise RepositoryUnreadable("its .git takes data from outside of the folder")

    def say(self, path: str, why: str) -> None:
        """Record that Git does not work in a folder."""
        where = self.root / path if path else self.root
        self.limits.append(
            f"Git does not work in {where}, whose files are there all the same: {why}."
        )

    def _is_inside(self, repository: Repository) -> bool:
        root = self.root.resolve()
        places = (repository.work_tree, repository.git_dir, repository.common_dir)
        return all(place.resolve().is_relative_to(root) for place in places)

    def _is_carried(self, repository: Repository, place: Path) -> bool:
        """Return whether the snapshot has all data of a folder's own repository."""
        if repository.work_tree != place:
            return False
        if is_self_contained(repository, place):
            return True
        if repository.git_dir != repository.common_dir or not self._is_inside(repository):
            return False
        pointer = place / ".git"
        if pointer.is_symlink() or pointer.is_dir():
            return False
        if carried_link(".git", read_data(pointer)) is None:
            return False
        inner = repository.git_dir.resolve().relative_to(self.root.resolve()).as_posix()
        above, is_in_data, _ = inner.partition(".git/modules/")
        if not is_in_data:
            return ".git" not in inner.split("/")
        return above.rstrip("/") not in self.not_carried
