"""Creates commits and a branch in a person's repository without its work tree, index and hooks.

Git works in a private directory (`repository.py` says why) whose index is empty at first. Only the
objects and the references are the repository's own, and nothing that exists is ever changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self

from ...git.process import GitFailed, run_git
from ...path_text import path_bytes, path_text
from ...valid_text import printable
from .configuration import (
    RepositoryUnreadable,
    parse_configuration,
    personal_configurations,
    read_data,
)
from .repository import (
    LISTING_SECONDS,
    Repository,
    private_configuration,
)

_BLOBS_AT_ONCE = 1000
"""The blobs read with one process: at most some ten MiB of usual sources."""

WRITING_SECONDS = 600.0
"""The time for the commits of a landing: the largest bundle has 512 MiB, on a slow disk."""

_LOG_COMMITS = "1000"
"""The commits of a branch that are searched for commits of a landing: a run has some hundred."""

_SHARED = re.compile(r"[a-z0-9]{1,8}")

FILTERS = ("filter", "working-tree-encoding", "ident")
"""Attributes with which a file in the work tree differs from the one in a commit."""


class TreeEntry(NamedTuple):
    """A file, link or submodule of a commit."""

    mode: str
    """The mode as Git writes it, in octal digits."""
    id: str


class Person(NamedTuple):
    """The author or the committer of a commit."""

    name: str
    email: str


@dataclass(frozen=True)
class NewCommit:
    """The content of a commit besides its tree."""

    message: str
    author: Person
    committer: Person
    seconds: int
    """The time of the commit, in seconds since the epoch."""


class BranchRefused(Exception):
    """The branch cannot be created: it exists, or one with such a name is in its way."""


class Commits:
    """The commits of a repository; `open_commits` makes one.

    All methods block, and raise `RepositoryUnreadable` when Git fails.
    """

    def __init__(self, repository: Repository, private: Path, settings: Mapping[str, str]) -> None:
        self.repository = repository
        self.settings = settings
        """The values in the repository's own configuration."""
        self._private = private
        self._is_sha256 = settings.get("extensions.objectformat") == "sha256"

    def read(self, commit: str) -> dict[str, TreeEntry]:
        """Put a commit into the private index, and return its entries by path text."""
        if self.git("cat-file", "-t", commit).strip() != b"commit":
            raise RepositoryUnreadable(f"{commit} is no commit")
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
                    raise RepositoryUnreadable(f"object {name} is {kind[0]} in this clone")
                position = end + 1 + int(kind[1])
                found[identity] = output[end + 1 : position]
                position += 1
        return found

    def new_hash(self) -> hashlib._Hash:
        """Return a hash of the kind that the repository's ids use."""
        return hashlib.sha256() if self._is_sha256 else hashlib.sha1(usedforsecurity=False)

    def find_tree(self, commit: str) -> str:
        """Return the id of a commit's tree."""
        return self.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()

    def new_commits(self, base: str) -> NewCommits:
        """Return a writer of commits on top of each other, the first one on `base`."""
        return NewCommits(self, base)

    def write(self, stream: IO[bytes]) -> list[str]:
        """Store the commits of a stream of `git fast-import`, and return their ids in order.

        No reference changes, and no filter runs.
        """
        with tempfile.TemporaryDirectory(prefix="fanout-git-") as name:
            private = Path(name)
            (private / "refs").mkdir()
            for file in ("HEAD", "config"):
                (private / file).write_bytes((self._private / file).read_bytes())
            try:
                run_git(
                    ["fast-import", "--quiet", "--export-marks=marks"],
                    folder=private,
                    git_dir=private,
                    objects=self.repository.common_dir / "objects",
                    stdin=stream,
                    seconds=WRITING_SECONDS,
                )
            except GitFailed as error:
                raise RepositoryUnreadable(str(error)) from error
            marks = (private / "marks").read_text().split()
        ids = {int(mark[1:]): one for mark, one in zip(marks[::2], marks[1::2], strict=True)}
        return [ids[number] for number in sorted(ids)]

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
        """Create a branch. This is the only visible step of a landing.

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
            raise RepositoryUnreadable(str(error)) from error

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
        except RepositoryUnreadable as error:
            raise BranchRefused(re.sub(r"^((fatal|prepare|error): )+", "", str(error))) from error


class NewCommits:
    """Commits that are written together, by one process of Git; `Commits.new_commits` makes one.

    Use it as a context manager: until they are written, contents are in a temporary file.
    """

    def __init__(self, commits: Commits, base: str) -> None:
        self._commits = commits
        self._parent = base
        self._count = 0
        self._stream = tempfile.TemporaryFile(prefix="fanout-commits-")  # noqa: SIM115 - closed at the end
        self._blobs: dict[str, tuple[int, int]] = {}
        """Id -> where its content is in the stream, and its size."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def add_blob(self, content: bytes) -> str:
        """Add a content unchanged, and return its id."""
        digest = self._commits.new_hash()
        digest.update(b"blob %d\0" % len(content))
        digest.update(content)
        identity: str = digest.hexdigest()
        if identity not in self._blobs:
            self._stream.seek(0, os.SEEK_END)
            self._stream.write(b"blob\ndata %d\n" % len(content))
            self._blobs[identity] = (self._stream.tell(), len(content))
            self._stream.write(content + b"\n")
        return identity

    def content(self, identity: str) -> bytes | None:
        """Return the content of a blob; None if it was not added here."""
        if identity not in self._blobs:
            return None
        start, size = self._blobs[identity]
        self._stream.seek(start)
        return self._stream.read(size)

    def add(self, changes: Mapping[str, TreeEntry | None], new: NewCommit) -> None:
        """Add a commit with changes to the one before it; None removes a path."""
        self._count += 1
        message = f"{new.message}\n".encode("utf-8", "replace").replace(b"\0", b"")
        lines = [
            f"commit refs/heads/new\nmark :{self._count}\n"
            f"author {_line(new.author)} {new.seconds} +0000\n"
            f"committer {_line(new.committer)} {new.seconds} +0000\n".encode("utf-8", "replace"),
            b"data %d\n%s\n" % (len(message), message),
            f"from {self._parent}\n".encode(),
        ]
        removed = [path for path, entry in changes.items() if entry is None]
        lines += [b"D %s\n" % _quoted(path) for path in removed]
        lines += [
            b"M %s %s %s\n" % (entry.mode.encode(), entry.id.encode(), _quoted(path))
            for path, entry in changes.items()
            if entry is not None
        ]
        self._stream.seek(0, os.SEEK_END)
        self._stream.write(b"".join(lines))
        self._parent = f":{self._count}"

    def write(self) -> list[str]:
        """Store the commits, and return their ids in order; once.

        Raises:
            RepositoryUnreadable: Git failed.
        """
        if not self._count:
            return []
        self._stream.seek(0)
        return self._commits.write(self._stream)


def _quoted(path: str) -> bytes:
    """Return a path as Git's streams name one."""
    content = path_bytes(path)
    for character, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        content = content.replace(character, escaped)
    return b'"%s"' % content


@contextmanager
def open_commits(repository: Repository) -> Iterator[Commits]:
    """Open a repository's objects and references, for the duration of a context.

    Raises:
        RepositoryUnreadable: Its configuration cannot be read, or its references are not in files.
    """
    settings = parse_configuration(read_data(repository.common_dir / "config"))
    if settings.get("extensions.refstorage", "files") != "files":
        raise RepositoryUnreadable("its references are not stored in files")
    packed = repository.common_dir / "packed-refs"
    if packed.exists() and not packed.is_file():
        raise RepositoryUnreadable(f"{packed} is not a file")
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
    if name.startswith("-") or name in {"HEAD", "@"} or printable(name) != name:
        return False
    asking = ["check-ref-format", f"refs/heads/{name}"]
    return run_git(asking, folder=Path("/"), accepted=(0, 1))[0] == 0


def read_committer(commits: Commits) -> Person | None:
    """Return the identity that a person has configured; None if there is none.

    Files that a configuration includes under a condition are not read.
    """
    places = [commits.settings]
    for path in personal_configurations():
        try:
            places.append(parse_configuration(read_data(path)))
        except RepositoryUnreadable:
            continue
    name, email = (
        next((place[key] for place in places if place.get(key)), "")
        for key in ("user.name", "user.email")
    )
    return Person(name, email) if name and email else None


def _line(person: Person) -> str:
    """Return a person in the form of a commit."""
    name, email = (re.sub(r"[<>\s\x00-\x1f\x7f]+", " ", printable(text)).strip() for text in person)
    return f"{name or 'unknown'} <{email}>"


def _private_configuration(settings: Mapping[str, str]) -> str:
    kept = {key: value for key, value in settings.items() if key == "extensions.objectformat"}
    shared = settings.get("core.sharedrepository", "")
    more = f"[core]\nsharedRepository = {shared}\n" if _SHARED.fullmatch(shared) else ""
    return private_configuration(kept) + more
