"""Asks Git about a folder: which files it ignores, and whether it could restore every file.

Git answers from a private repository. The person's repository provides only data: copies of the
index and of the ignore rules, and the objects to read. Its configuration names programs, so Git
never reads it; the few values that matter are read from a copy and checked.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...git.process import GitFailed, run_git
from ...path_text import path_text
from .configuration import (
    RepositoryUnreadable,
    excludes_file,
    parse_configuration,
    read_data,
    read_settings,
)

LISTING_SECONDS = 60.0
"""The time for all ignored files of a very large repository on a slow disk; others need a second.
"""

STATUS_SECONDS = 30.0
"""The time for the state of a large repository on a slow disk; after that a person is asked."""

MAX_INDEX_BYTES = 1024**3
"""The largest index, of ten million entries."""

_PLAIN_SETTINGS = ("core.filemode", "core.ignorecase", "core.precomposeunicode", "core.symlinks")
"""The settings that describe the repository's file system."""

_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

_SUBMODULE_MODE = "160000"

_MAX_REFERENCES = 5
"""The most references to references that Git follows."""


class LeadsNowhere(RepositoryUnreadable):
    """A `.git` file names a place where there is no repository."""


@dataclass(frozen=True)
class Repository:
    """A person's repository."""

    work_tree: Path
    git_dir: Path
    """The folder of its HEAD and its index."""
    common_dir: Path
    """The folder of its objects, references and configuration: that of a linked work tree is the
    main one's."""


def enclosing_repository(folder: Path) -> Repository | None:
    """Return the repository that a folder is in, as Git would find it; None if there is none.

    Raises:
        LeadsNowhere: A `.git` file names a place without a repository.
    """
    folder = folder.resolve()
    device = folder.stat().st_dev
    for candidate in (folder, *folder.parents):
        if candidate.stat().st_dev != device:
            return None
        git_dir = _git_dir(candidate / ".git")
        if git_dir is not None:
            return Repository(candidate, git_dir, _common_dir(git_dir))
    return None


def ignored_paths(repository: Repository, folder: Path) -> frozenset[str] | None:
    """Return the paths in a folder that its repository ignores; None if it ignores the folder.

    Of a folder below it that is ignored as a whole, only the folder's path is returned.

    Args:
        repository: The repository.
        folder: Its work tree, or a folder in it.

    Raises:
        RepositoryUnreadable: The repository's data cannot be read, or Git failed.
    """
    folder = folder.resolve()
    listing = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
    with _private(repository) as private:
        if private.ignores(folder):
            return None
        listed = private.git(*listing, "--directory", folder=folder, seconds=LISTING_SECONDS)
    return frozenset(os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path)


def ignored_by_rules(folder: Path) -> frozenset[str]:
    """Return the paths in a folder that its `.gitignore` files and a person's own rules name.

    It is for a folder whose repository cannot be asked, so that its tracked files are unknown.

    Raises:
        RepositoryUnreadable: As `ignored_paths`.
    """
    with tempfile.TemporaryDirectory(prefix="fanout-git-") as name:
        empty = Path(name)
        (empty / "objects").mkdir()
        return ignored_paths(Repository(folder.resolve(), empty, empty), folder) or frozenset()


def newly_visible(
    folder: Path, changed: Mapping[str, tuple[bytes | None, bytes | None]]
) -> list[str]:
    """Return the path texts of ignored files in a folder that no rule would ignore after a change.

    There are none if the folder is in no repository: then nothing is ignored by rules.

    Args:
        folder: The work tree of a repository, or a folder in it.
        changed: The path of each changed `.gitignore`, relative to the folder, with its content
            before and after; None where there is no such file.

    Raises:
        RepositoryUnreadable: As `ignored_paths`.
    """
    folder = folder.resolve()
    with tempfile.TemporaryDirectory(prefix="fanout-git-") as name:
        scratch = Path(name)
        repository = _repository_or_rules_only(folder, scratch)
        if repository is None:
            return []
        listing = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        prefix = folder.relative_to(repository.work_tree)
        with _private(repository) as private:
            output = private.git(*listing, folder=folder, seconds=LISTING_SECONDS)
            paths = {
                (prefix / os.fsdecode(path)).as_posix() for path in output.split(b"\0") if path
            }
            if not paths:
                return []
            before, after = (
                private.matched(
                    paths,
                    {(prefix / path).as_posix(): sides[side] for path, sides in changed.items()},
                    scratch / str(side),
                )
                for side in (0, 1)
            )
    found = sorted(before - after)
    return [path_text(Path(path).relative_to(prefix).as_posix()) for path in found]


def _repository_or_rules_only(folder: Path, empty: Path) -> Repository | None:
    try:
        return enclosing_repository(folder)
    except LeadsNowhere:  # then a snapshot obeys the rules that are in the folder
        (empty / "objects").mkdir()
        return Repository(folder, empty, empty)


def is_submodule(repository: Repository, folder: Path) -> bool:
    """Return whether a repository tracks a folder in it as a submodule.

    Raises:
        RepositoryUnreadable: As `ignored_paths`.
    """
    path = folder.resolve().relative_to(repository.work_tree).as_posix()
    with _private(repository) as private:
        listed = private.listed("ls-files", "--stage", "-z")
    return path in listed and listed[path][0] == _SUBMODULE_MODE


def added_files(folder: Path) -> list[str]:
    """Return the path texts of a folder's files that are missing in the checked-out commit.

    They are relative to the folder, without ignored files. There are none if the folder is in no
    repository, or if Git failed.
    """
    folder = folder.resolve()
    try:
        repository = enclosing_repository(folder)
        if repository is None:
            return []
        head = head_commit(repository)
        with _private(repository) as private:
            found = {*private.listed("ls-files", "--stage", "-z")}
            if head:
                found -= private.listed("ls-tree", "-r", "-z", "--full-tree", head).keys()
            others = ("ls-files", "-z", "--others", "--exclude-standard")
            listed = private.git(*others, folder=repository.work_tree, seconds=LISTING_SECONDS)
    except (RepositoryUnreadable, OSError):
        return []
    inner = folder.relative_to(repository.work_tree).as_posix()
    prefix = "" if inner == "." else f"{inner}/"
    paths = {*found, *filter(None, os.fsdecode(listed).split("\0"))}
    return [path_text(path.removeprefix(prefix)) for path in paths if path.startswith(prefix)]


def is_clean_checkout(folder: Path) -> bool:
    """Return whether Git can restore every file of a folder that it does not ignore.

    Also False if that is unknown.
    """
    try:
        repository = enclosing_repository(folder)
        if repository is None:
            return False
        with _private(repository) as private:
            private.set_head(head_commit(repository))
            return not private.git(
                "status",
                "--porcelain",
                "-z",
                "--no-renames",
                "--ignore-submodules=all",
                "--untracked-files=normal",
                "--",
                ".",
                folder=folder.resolve(),
                seconds=STATUS_SECONDS,
            )
    except (RepositoryUnreadable, OSError):
        return False


def index_without(
    work_tree: Path, git_dir: Path, paths: Collection[str]
) -> tuple[bytes, frozenset[str]] | None:
    """Return a repository's index for a copy of its files that lacks some.

    Committed files count as unchanged in the copy; files that were only added are unknown to it.

    Args:
        work_tree: The repository's files.
        git_dir: Its own data.
        paths: The missing files, and folders with a slash at the end, relative to the work tree.

    Returns:
        The index, and the ids of the missing files' contents that no commit has; None if Git tracks
        none of the paths.

    Raises:
        RepositoryUnreadable: The repository's data cannot be read, or Git failed.
    """
    repository = Repository(work_tree, git_dir, git_dir)
    with _private(repository) as private:
        tracked = private.listed("ls-files", "--stage", "-z")
        folders = tuple(path for path in paths if path.endswith("/"))
        missing = {
            path: fields
            for path, fields in tracked.items()
            if path in paths or path.startswith(folders)
        }
        if not missing:
            return None
        head = head_commit(repository)
        committed = private.listed("ls-tree", "-r", "-z", "--full-tree", head) if head else {}
        private.update_index("--force-remove", "-z", "--stdin", lines=missing)
        kept = {path: committed[path] for path in missing if path in committed}
        entries = [f"{mode} {identity}\t{path}" for path, (mode, identity) in kept.items()]
        private.update_index("-z", "--index-info", lines=entries)
        private.update_index("--skip-worktree", "-z", "--stdin", lines=kept)
        in_history = {identity for _, identity in committed.values()}
        only_added = {identity for _, identity in missing.values()} - in_history
        return (private.path / "index").read_bytes(), frozenset(only_added)


@dataclass(frozen=True)
class _Private:
    """A private repository with copies of a person's index and ignore rules."""

    path: Path
    repository: Repository

    def ignores(self, folder: Path) -> bool:
        """Return whether the repository ignores a folder in it."""
        path = folder.relative_to(self.repository.work_tree).as_posix()
        if path == ".":
            return False
        code, _ = self._run(
            ("check-ignore", "--quiet", "--", f"./{path}/"),
            folder=self.repository.work_tree,
            seconds=STATUS_SECONDS,
            accepted=(0, 1),
        )
        return code == 0

    def git(self, *arguments: str, folder: Path, seconds: float) -> bytes:
        """Run a command in a folder of the repository, and return its output."""
        return self._run(arguments, folder=folder, seconds=seconds)[1]

    def matched(
        self, paths: Collection[str], rules: Mapping[str, bytes | None], scratch: Path
    ) -> set[str]:
        """Return the paths that the repository ignores with replaced `.gitignore` files.

        Args:
            paths: Files, relative to the work tree.
            rules: The replaced `.gitignore` files and their content; None: the file does not exist.
            scratch: A folder to be made, for a tree that has nothing but such files.
        """
        above = {parent for path in paths for parent in PurePosixPath(path).parents}
        for parent in above:
            place = (parent / ".gitignore").as_posix()
            content = rules.get(place)
            if place not in rules and not (self.repository.work_tree / place).is_symlink():
                content = read_data(self.repository.work_tree / place)
            if content:
                (scratch / parent).mkdir(parents=True, exist_ok=True)
                (scratch / place).write_bytes(content)
        scratch.mkdir(exist_ok=True)
        other = replace(self, repository=replace(self.repository, work_tree=scratch))
        _, output = other._run(  # noqa: SLF001 - of its own class
            ("check-ignore", "--no-index", "-z", "--stdin"),
            folder=scratch,
            seconds=LISTING_SECONDS,
            accepted=(0, 1),
            stdin=b"".join(os.fsencode(path) + b"\0" for path in paths),
        )
        return {os.fsdecode(path) for path in output.split(b"\0") if path}

    def listed(self, *listing: str) -> dict[str, tuple[str, str]]:
        """Return the paths that `ls-files --stage` or `ls-tree` lists, with mode and object id."""
        output = self.git(*listing, folder=self.repository.work_tree, seconds=LISTING_SECONDS)
        entries = (os.fsdecode(entry).partition("\t") for entry in output.split(b"\0") if entry)
        fields = ((head.split(" "), path) for head, _, path in entries)
        return {
            path: (head[0], head[2] if listing[0] == "ls-tree" else head[1])
            for head, path in fields
        }

    def update_index(self, *options: str, lines: Iterable[str]) -> None:
        """Change the copy of the index."""
        self._run(
            ("update-index", *options),
            folder=self.repository.work_tree,
            seconds=STATUS_SECONDS,
            stdin=b"".join(os.fsencode(line) + b"\0" for line in lines),
        )

    def _run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        seconds: float,
        accepted: Collection[int] = (0,),
        stdin: bytes = b"",
    ) -> tuple[int, bytes]:
        try:
            return run_git(
                arguments,
                folder=folder,
                git_dir=self.path,
                work_tree=self.repository.work_tree,
                objects=self.repository.common_dir / "objects",
                settings=[f"core.excludesFile={self.path / 'excludes'}", "core.splitIndex=false"],
                stdin=stdin,
                accepted=accepted,
                seconds=seconds,
            )
        except GitFailed as error:
            raise RepositoryUnreadable(str(error)) from error

    def set_head(self, commit: str | None) -> None:
        if commit is not None:
            (self.path / "HEAD").write_text(f"{commit}\n")


@contextmanager
def _private(repository: Repository) -> Iterator[_Private]:
    settings = parse_configuration(read_data(repository.common_dir / "config"))
    with tempfile.TemporaryDirectory(prefix="fanout-git-") as name:
        # As little as Git takes for a repository: where a file system has removed many files, each
        # new one takes it up to 0.7 ms. Objects are read from the person's repository.
        path = Path(name)
        (path / "refs").mkdir()
        (path / "HEAD").write_text("ref: refs/heads/none\n")
        (path / "config").write_text(private_configuration(settings))
        for index in ("index", *_shared_indexes(repository.git_dir)):
            _copy(repository.git_dir / index, path / index)
        personal = repository.work_tree / excludes_file(settings)
        own = read_data(repository.common_dir / "info" / "exclude")  # has priority over a person's
        rules = read_data(personal) + b"\n" + own.removeprefix(codecs.BOM_UTF8)
        (path / "excludes").write_bytes(rules)
        yield _Private(path, repository)


def private_configuration(settings: Mapping[str, str]) -> str:
    """Return the configuration of a private repository for the same files."""
    is_sha256 = settings.get("extensions.objectformat") == "sha256"
    lines = ["[core]", f"repositoryformatversion = {int(is_sha256)}", "bare = false"]
    lines += [
        f"{name.partition('.')[2]} = {settings[name]}"
        for name in _PLAIN_SETTINGS
        if settings.get(name) in {"true", "false"}
    ]
    if is_sha256:
        lines += ["[extensions]", "objectformat = sha256"]
    return "\n".join(lines) + "\n"


def all_settings(repository: Repository) -> list[tuple[str, str]]:
    """Return the names and values of all settings that hold in a repository, or may hold."""
    return read_settings([repository.common_dir / "config", repository.git_dir / "config.worktree"])


def _git_dir(path: Path) -> Path | None:
    """Return the folder of a repository's data from its `.git`; None if it is not one."""
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return path if os.path.lexists(path / "HEAD") else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    target = _pointer(path, "gitdir: ")
    if target is None or not os.path.lexists(target / "HEAD"):
        raise LeadsNowhere(f"{path} names no repository")
    return target


def _common_dir(git_dir: Path) -> Path:
    return _pointer(git_dir / "commondir", "") or git_dir


def _pointer(path: Path, prefix: str) -> Path | None:
    """Return the folder that a file names, relative to its own; None if it names none."""
    text = os.fsdecode(read_data(path)).rstrip("\r\n")
    if not text.startswith(prefix) or len(text) == len(prefix) or "\0" in text:
        return None
    return path.parent / text.removeprefix(prefix)


def head_commit(repository: Repository) -> str | None:
    """Return the id of the commit that is checked out; None if there is none or it is not found."""
    reference = "HEAD"
    for _ in range(_MAX_REFERENCES):
        places = (repository.git_dir, repository.common_dir)
        found = next(filter(None, (read_data(place / reference) for place in places)), b"")
        text = os.fsdecode(found).strip() or _packed(repository, reference)
        if _OBJECT_ID.fullmatch(text):
            return text
        reference = text.removeprefix("ref: ")
        if reference == text or not reference.startswith("refs/") or ".." in reference:
            return None
    return None


def _packed(repository: Repository, reference: str) -> str:
    for line in read_data(repository.common_dir / "packed-refs", MAX_INDEX_BYTES).splitlines():
        commit, _, name = os.fsdecode(line).partition(" ")
        if name == reference:
            return commit
    return ""


def _shared_indexes(git_dir: Path) -> list[str]:
    """Return the names of the files that a split index refers to."""
    try:
        return [path.name for path in git_dir.iterdir() if path.name.startswith("sharedindex.")]
    except OSError as error:
        raise RepositoryUnreadable(f"{git_dir} cannot be read: {error.strerror}") from error


def _copy(source: Path, target: Path) -> None:
    content = read_data(source, MAX_INDEX_BYTES)
    if content:
        target.write_bytes(content)
