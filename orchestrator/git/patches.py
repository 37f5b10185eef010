"""The patch between two sets of files, made by Git in a private repository.

The repository is written without Git, so that one process makes the patch. It holds only these
files and no attributes, and its content is never trusted.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BufferedRandom
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ..path_text import path_bytes, path_text
from .process import GitFailed, run_git

_TYPES = {b"tree": 2, b"blob": 3}
_MAX_BYTES = 2**31
"""The largest pack whose index has short offsets: four times what a change bundle carries."""
RENAME_CANDIDATES = 400
"""The most files on either side among which renames are searched; with more, only equal files count
as renamed (git's own limit)."""
MAX_FOLDERS = 100_000
"""The most folders of both sides, each of which is an object: ten for each change of the largest
bundle."""
MAX_PATCH_BYTES = 1024**3
"""The largest patch: both sides of the largest bundle, 512 MiB, as text for binary contents."""
MAX_SECONDS = 120.0
"""The patch of the largest bundle takes a minute."""

_FOLDER_MODE = "40000"
_DIFF = [
    "diff-tree", "-r", "-p", f"-l{RENAME_CANDIDATES}", "-M50%", "--root", "--no-ext-diff",
    "--no-textconv", "--binary", "--full-index", "--no-color", "--src-prefix=a/", "--dst-prefix=b/",
]  # fmt: skip


class _Entry(NamedTuple):
    sha256: bytes
    """The id of the object."""
    checksum: int
    offset: int


class Pack:
    """A pack that is being written. Its objects are not compressed.

    Args:
        file: An empty file, open for reading and writing; stays the caller's.
    """

    def __init__(self, file: BufferedRandom) -> None:
        self._file = file
        self._entries: dict[bytes, _Entry] = {}
        self._file.write(_header(0))

    def add(self, kind: bytes, content: bytes) -> bytes:
        """Add an object, unless it is there, and return its id.

        Args:
            kind: `blob` or `tree`.
            content: What it holds.

        Raises:
            GitFailed: The pack is full, or two constructed objects have the same id, so that one
                would replace the other.
        """
        head = b"%s %d\0" % (kind, len(content))
        digest, proof = hashlib.sha1(head, usedforsecurity=False), hashlib.sha256(head)
        digest.update(content)
        proof.update(content)
        identity, known = digest.digest(), self._entries.get(digest.digest())
        if known is None:
            self._entries[identity] = self._write(kind, content, proof.digest())
        elif known.sha256 != proof.digest():
            raise GitFailed("two different files have one object id")
        return identity

    def close(self) -> bytes:
        """Complete the pack, and return its index."""
        self._file.seek(0)
        self._file.write(_header(len(self._entries)))
        self._file.seek(0)
        checksum = hashlib.file_digest(self._file, _sha1).digest()
        self._file.write(checksum)
        ordered = sorted(self._entries.items())
        counts = [0] * 256
        for identity, _ in ordered:
            counts[identity[0]] += 1
        index = b"\xfftOc" + struct.pack(">I256I", 2, *accumulate(counts))
        index += b"".join(identity for identity, _ in ordered)
        index += b"".join(struct.pack(">I", entry.checksum) for _, entry in ordered)
        index += b"".join(struct.pack(">I", entry.offset) for _, entry in ordered)
        index += checksum
        return index + _sha1(index).digest()

    def _write(self, kind: bytes, content: bytes, sha256: bytes) -> _Entry:
        offset = self._file.tell()
        if offset + len(content) >= _MAX_BYTES:
            raise GitFailed("the files are too large for a patch")
        size, first = len(content) >> 4, _TYPES[kind] << 4 | len(content) & 15
        head = bytearray()
        while size:
            head.append(first | 0x80)
            size, first = size >> 7, size & 0x7F
        head.append(first)
        stored = zlib.compressobj(0)
        checksum = 0
        for part in (head, stored.compress(content), stored.flush()):
            checksum = zlib.crc32(part, checksum)
            self._file.write(part)
        return _Entry(sha256, checksum, offset)


def _header(objects: int) -> bytes:
    return struct.pack(">4sII", b"PACK", 2, objects)


def _sha1(content: bytes = b"") -> hashlib._Hash:
    return hashlib.sha1(content, usedforsecurity=False)


class PatchFile(NamedTuple):
    """One file of a side."""

    path: str
    """A path text."""
    mode: str
    """`100644`, `100755` or `120000`: a symlink, whose content is its target."""
    content: Callable[[], bytes]


def patch_between(before: Iterable[PatchFile], after: Iterable[PatchFile]) -> bytes:
    """Return what `git diff --binary -M` prints for two sets of files; blocks.

    Args:
        before: The files of one side; no path is twice in it.
        after: The files of the other.

    Raises:
        GitFailed: Git is not installed or failed, or a path cannot be in a repository.
    """
    with tempfile.TemporaryDirectory(prefix="fanout-patch-") as name:
        repository = _Repository(Path(name))
        sides = repository.write([before, after])
        return run_git(
            [*_DIFF, *sides],
            folder=repository.work_tree,
            git_dir=repository.git_dir,
            seconds=MAX_SECONDS,
            max_output_bytes=MAX_PATCH_BYTES,
        )[1]


def find_renamed(path: str, before: bytes, after: Mapping[str, bytes]) -> str | None:
    """Return the file that Git considers to be a renamed one; blocks.

    Args:
        path: The path of the missing file.
        before: Its content.
        after: Contents by path of the files that have appeared since.

    Returns:
        None if there is none, or if several are as similar as the one that Git would choose.

    Raises:
        GitFailed: As `patch_between`.
    """
    same = [one for one, content in after.items() if content == before]
    if not before or not after or len(same) > 1:
        return None
    with tempfile.TemporaryDirectory(prefix="fanout-renames-") as name:
        repository = _Repository(Path(name))
        sides = repository.write(
            [
                [PatchFile(path, "100644", lambda: before)],
                [PatchFile(one, "100644", partial(after.__getitem__, one)) for one in after],
            ]
        )
        _, output = run_git(
            ["diff-tree", "-r", "-z", "--name-status", "-M50%", f"-l{RENAME_CANDIDATES}", *sides],
            folder=repository.work_tree,
            git_dir=repository.git_dir,
            seconds=MAX_SECONDS,
        )
    fields = [path_text(field) for field in output.split(b"\0")]
    return next((fields[at + 2] for at, one in enumerate(fields) if one.startswith("R")), None)


class _Folder:
    """A folder of a side, to which files and folders are added until it is written."""

    def __init__(self, above: _Folder | None, name: bytes) -> None:
        self.above, self.name = above, name
        self.folders: dict[bytes, _Folder] = {}
        self.entries: dict[bytes, tuple[str, bytes]] = {}
        """Name -> mode and object id."""

    def add(self, name: bytes, mode: str, identity: bytes) -> None:
        """Add an entry."""
        if not name or b"\0" in name or name in self.entries:
            raise GitFailed("a path cannot be in a repository")
        self.entries[name] = (mode, identity)

    def listing(self) -> bytes:
        """Return its content in Git's form: a folder is sorted as if its name ended with `/`."""
        ordered = sorted(
            (name + b"/" if mode == _FOLDER_MODE else name, name, mode, identity)
            for name, (mode, identity) in self.entries.items()
        )
        return b"".join(
            b"%s %s\0%s" % (mode.encode(), name, identity) for _, name, mode, identity in ordered
        )


class _Repository:
    """A new repository in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.git_dir, self.work_tree = folder / "git", folder / "empty"
        for made in (self.git_dir / "objects/pack", self.git_dir / "refs", self.work_tree):
            made.mkdir(parents=True)
        (self.git_dir / "HEAD").write_text("ref: refs/heads/none\n")
        (self.git_dir / "config").write_text("[core]\n\trepositoryformatversion = 0\n")

    def write(self, sides: Iterable[Iterable[PatchFile]]) -> list[str]:
        """Write sides, and return the ids of their uppermost folders; once."""
        folder = self.git_dir / "objects/pack"
        with (folder / "pack-0.pack").open("w+b") as file:
            pack = Pack(file)
            trees = _Trees(pack)
            written = [trees.write(files).hex() for files in sides]
            (folder / "pack-0.idx").write_bytes(pack.close())
        return written


class _Trees:
    """Writes the files of sides with their folders."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._folders = 0

    def write(self, files: Iterable[PatchFile]) -> bytes:
        """Write one side, and return the id of its uppermost folder."""
        root = _Folder(None, b"")
        folders = [root]
        for path, mode, content in files:
            *above, name = path_bytes(path).split(b"/")
            folder = root
            for one in above:
                if one not in folder.folders:
                    folder.folders[one] = _Folder(folder, one)
                    folders.append(folder.folders[one])
                    self._count_folder()
                folder = folder.folders[one]
            folder.add(name, mode, self._pack.add(b"blob", content()))
        for folder in reversed(folders):  # those in a folder come after it
            identity = self._pack.add(b"tree", folder.listing())
            if folder.above is not None:
                folder.above.add(folder.name, _FOLDER_MODE, identity)
        return identity  # the uppermost one's, which is the first

    def _count_folder(self) -> None:
        self._folders += 1
        if self._folders > MAX_FOLDERS:
            raise GitFailed(f"a patch has files in {MAX_FOLDERS} folders at most")
