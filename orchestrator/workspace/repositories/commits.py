"""New commits and a new branch in a person's repository, beside its work tree, index and hooks.

Git works in a private directory (`repository.py` says why) whose index is empty at first. Only the
objects and the references are the repository's own, and nothing that exists is ever changed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fanout.orchestrator.git.process import GitFailed, run_git
from fanout.orchestrator.path_text import path_bytes, path_text
from fanout.orchestrator.workspace.repositories.configuration import (
    Unreadable,
    parse_configuration,
    personal_configurations,
    read_data,
)
from fanout.orchestrator.workspace.repositories.repository import (
    LISTING_SECONDS,
    Repository,
    private_configuration,
)

_BLOBS_AT_ONCE = 1000
"""Read with one process: at most some ten MiB of usual sources."""

_LOG_COMMITS = "1000"
"""Of a branch, in which commits of a landing are looked for: a run has some hundred."""

_SHARED = re.compile(r"[a-z0-9]{1,8}")

FILTERS = ("filter", "working-tree-encoding", "ident")
"""Attributes with which a file in the work tree differs from the one in a commit."""


class TreeEntry(NamedTuple):
    """A file, link or submodule of a commit."""

    mode: str
    """As Git writes it, in octal digits."""
    id: str


class Person(NamedTuple):
    """The author or the committer of a commit."""

    name: str
    email: str


@dataclass(frozen=True)
class NewCommit:
    """What a commit says beside its tree."""

    message: str
    author: Person
    committer: Person
    seconds: int
    """Since the epoch."""


class BranchRefused(Exception):
    """The branch cannot be created: it exists, or one with such a name is in its way."""


class Commits:
    """The commits of a repository; `open_commits` makes one.

    All methods block, and raise `Unreadable` when Git fails.
    """

    def __init__(self, repository: Repository, private: Path, settings: Mapping[str, str]) -> None:
        self.repository = repository
        self.settings = settings
        """The values in the repository's own configuration."""
        self._private = private
        is_sha256 = settings.get("extensions.objectformat") == "sha256"
        self._no_object = "0" * (64 if is_sha256 else 40)

    def read(self, commit: str) -> dict[str, TreeEntry]:
        """Put a commit into the private index, and return its entries by path text."""
        if self.git("cat-file", "-t", commit).strip() != b"commit":
            raise Unreadable(f"{commit} is no commit")
        self.git("read-tree", commit)
        listed = self.git("ls-files", "--stage", "-z")
        found = {}
        for line in filter(None, listed.split(b"\0")):
            head, _, path = line.partition(b"\t")
            mode, identity, _ = head.decode("ascii").split(" ")
            found[path_text(path)] = TreeEntry(mode, identity)
        return found

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Return the contents of blobs by id."""
        wanted, found = sorted(set(ids)), {}
        for start in range(0, len(wanted), _BLOBS_AT_ONCE):
            some = wanted[start : start + _BLOBS_AT_ONCE]
            given = b"".join(identity.encode() + b"\n" for identity in some)
            output = self.git("cat-file", "--batch", stdin=given)
            position = 0
            for identity in some:
                end = output.index(b"\n", position)
                name, *kind = output[position:end].decode().split(" ")
                if kind[0] != "blob":
                    raise Unreadable(f"object {name} is {kind[0]} in this clone")
                position = end + 1 + int(kind[1])
                found[identity] = output[end + 1 : position]
                position += 1
        return found

    def write_blobs(self, contents: Sequence[bytes]) -> list[str]:
        """Store contents as they are, and return their ids; no filter runs."""
        if not contents:
            return []
        with tempfile.TemporaryDirectory(prefix="fanout-blobs-") as folder:
            for number, content in enumerate(contents):
                Path(folder, str(number)).write_bytes(content)
            names = "".join(f"{folder}/{number}\n" for number in range(len(contents)))
            hashing = ("hash-object", "-w", "--no-filters", "--stdin-paths")
            return self.git(*hashing, stdin=os.fsencode(names)).decode().split()

    def write_tree(self, changes: Mapping[str, TreeEntry | None]) -> str:
        """Change the private index, None removes a path, and return the id of its tree."""
        gone = [path for path, entry in changes.items() if entry is None]
        lines = [(f"0 {self._no_object}", path) for path in gone]
        lines += [(f"{entry.mode} {entry.id}", path) for path, entry in changes.items() if entry]
        given = b"".join(b"%s\t%s\0" % (head.encode(), path_bytes(path)) for head, path in lines)
        self.git("update-index", "-z", "--index-info", stdin=given)
        return self.git("write-tree", "--missing-ok").decode().strip()

    def tree_of(self, commit: str) -> str:
        """Return the id of a commit's tree."""
        return self.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()

    def write_commit(self, tree: str, parent: str, new: NewCommit) -> str:
        """Store a commit and return its id."""
        content = (
            f"tree {tree}\nparent {parent}\n"
            f"author {_line(new.author)} {new.seconds} +0000\n"
            f"committer {_line(new.committer)} {new.seconds} +0000\n"
            f"\n{new.message}\n"
        )
        given = content.encode("utf-8", "replace").replace(b"\0", b"")
        return (
            self.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=given).decode().strip()
        )

    def filtered(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the paths of which the index's attributes name a filter, with its name."""
        asking = ("check-attr", "--cached", "-z", "--stdin", *FILTERS)
        given = b"".join(path_bytes(path) + b"\0" for path in paths)
        fields = [path_text(field) for field in self.git(*asking, stdin=given).split(b"\0")]
        triples = zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
        return {
            path: name if value == "set" else value
            for path, name, value in triples
            if value not in {"unspecified", "unset"}
        }

    def require_free(self, branch: str, commit: str) -> None:
        """Require that a branch can be created.

        Raises:
            BranchRefused: It cannot.
        """
        self._update(branch, commit, "prepare", "abort")

    def create(self, branch: str, commit: str) -> None:
        """Create a branch. This is the only step of a landing that anybody sees.

        Raises:
            BranchRefused: It exists, or another one is in its way.
        """
        self._update(branch, commit, "prepare", "commit")

    def tip(self, branch: str) -> str | None:
        """Return the id of a branch's commit; None if it does not exist."""
        asking = ("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        return self.git(*asking, accepted=(0, 1)).decode().strip() or None

    def trailers(self, commit: str, key: str) -> frozenset[str]:
        """Return the values of a trailer in a commit and those before it."""
        shown = f"--format=%(trailers:key={key},valueonly)"
        output = self.git("log", "--no-show-signature", "-n", _LOG_COMMITS, shown, commit, "--")
        return frozenset(os.fsdecode(output).split())

    def git(self, *arguments: str, stdin: bytes = b"", accepted: Collection[int] = (0,)) -> bytes:
        """Run Git in the private directory, and return its output."""
        try:
            return run_git(
                arguments,
                folder=self._private,
                git_dir=self._private,
                objects=self.repository.common_dir / "objects",
                settings=["core.logAllRefUpdates=false"],
                stdin=stdin,
                accepted=accepted,
                seconds=LISTING_SECONDS,
            )[1]
        except GitFailed as error:
            raise Unreadable(str(error)) from error

    def _update(self, branch: str, commit: str, *then: str) -> None:
        reference = f"refs/heads/{branch}"
        folder = self.repository.common_dir
        for step in reference.split("/")[:-1]:
            folder /= step
            if folder.is_symlink():
                raise BranchRefused(f"{folder} is a symlink")
        lines = ("start", f"create {reference} {commit}", *then)
        try:
            self.git("update-ref", "--stdin", stdin="".join(f"{one}\n" for one in lines).encode())
        except Unreadable as error:
            raise BranchRefused(re.sub(r"^((fatal|prepare|error): )+", "", str(error))) from error


@contextmanager
def open_commits(repository: Repository) -> Iterator[Commits]:
    """Open a repository's objects and references, for the duration of a context.

    Raises:
        Unreadable: Its configuration cannot be read, or its references are not in files.
    """
    settings = parse_configuration(read_data(repository.common_dir / "config"))
    if settings.get("extensions.refstorage", "files") != "files":
        raise Unreadable("its references are not stored in files")
    packed = repository.common_dir / "packed-refs"
    if packed.exists() and not packed.is_file():
        raise Unreadable(f"{packed} is not a file")
    with tempfile.TemporaryDirectory(prefix="fanout-git-") as name:
        private = Path(name)
        for folder in ("objects", "info"):
            (private / folder).mkdir()
        (private / "refs").symlink_to((repository.common_dir / "refs").resolve())
        (private / "packed-refs").symlink_to(packed.resolve())
        (private / "HEAD").write_text("ref: refs/heads/none\n")
        (private / "config").write_text(_private_configuration(settings))
        for data in ("info/attributes", "shallow"):
            if content := read_data(repository.common_dir / data):
                (private / data).write_bytes(content)
        yield Commits(repository, private, settings)


def is_branch_name(name: str) -> bool:
    """Return whether a branch can have a name."""
    if name.startswith("-") or name in {"HEAD", "@"} or "\0" in name:
        return False
    asking = ["check-ref-format", f"refs/heads/{name}"]
    return run_git(asking, folder=Path("/"), accepted=(0, 1))[0] == 0


def committer_of(commits: Commits) -> Person | None:
    """Return the identity that a person has configured; None if there is none.

    Files that a configuration includes under a condition are not read.
    """
    places = [commits.settings]
    for path in personal_configurations():
        try:
            places.append(parse_configuration(read_data(path)))
        except Unreadable:
            continue
    name, email = (
        next((place[key] for place in places if place.get(key)), "")
        for key in ("user.name", "user.email")
    )
    return Person(name, email) if name and email else None


def _line(person: Person) -> str:
    """Return a person as a commit names one."""
    name, email = (re.sub(r"[<>\s\x00-\x1f\x7f]+", " ", text).strip() for text in person)
    return f"{name or 'unknown'} <{email}>"


def _private_configuration(settings: Mapping[str, str]) -> str:
    kept = {key: value for key, value in settings.items() if key == "extensions.objectformat"}
    shared = settings.get("core.sharedrepository", "")
    more = f"[core]\nsharedRepository = {shared}\n" if _SHARED.fullmatch(shared) else ""
    return private_configuration(kept) + more
