"""Finds out what the list says of each change: renames, line counts, binary files.

Standard library only. What git would say, and without git where that is certain: a process takes
longer than all the rest. Git is asked, once, about what may be renamed with edits, what was renamed
to several places, and long changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .change_sides import ChangedContents, ChangedVersion


_RENAME_CANDIDATES = 400
"""The most files on either side among which renames are searched; with more, only equal files count
as renamed (git's own limit)."""
_COPY_BYTES = 1 << 20
"""The bytes copied at once: enough to be quick, and little memory for a process."""
_UNQUOTED = re.compile(rb'[\x00-\x1f"\\]')
_DIFF = [
    "diff-tree", "-r", f"-l{_RENAME_CANDIDATES}", "-M50%", "--no-ext-diff", "--no-textconv",
    "--root", "--numstat", "-z",
]  # fmt: skip
_MAX_EDITS = 120
"""The most edits between lines that both texts have, in one comparison: it takes a millisecond or
two; git, which is as quick with many, takes more than that to start."""
_MAX_STEPS = 50_000
"""The most steps of all comparisons of a bundle: some 10 ms; git needs that to start."""
_MAX_PAIRS = 1_000
"""The most pairs of a missing file and a new one that are compared: some milliseconds."""
_MAX_SPANS = 2_000
"""The most spans of a content that is compared: with more, git's hashes of spans may be equal by
chance."""
_SPAN_BYTES = 64
"""The longest piece of a line that git compares at once."""
_SURE_SHARE = 0.4
"""The share of the larger content that has to be common: with less, git, which wants a half, finds
no rename. It counts line ends a little differently."""


class PrivateGitFailed(RuntimeError):
    """The git program is missing, or failed."""


@dataclass(frozen=True)
class GitFile:
    """One file of a side, as input for git."""

    path: str
    mode: str
    """`100644`, `100755` or `120000`."""
    content: bytes | Path
    """Itself, or the file that holds it."""


@dataclass(frozen=True)
class PathDiff:
    """Git's data about one path of the result (of the snapshot, when the path was deleted)."""

    from_path: str | None
    """The former path of a renamed file."""
    lines_added: int
    lines_removed: int
    binary: bool


class PrivateGit:
    """A repository in a scratch folder. Every method raises GitFailed when git fails."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._home = scratch / "git"
        self._elsewhere = scratch / "empty"
        for folder in ("git/objects", "git/refs", "git/info", "empty"):
            (scratch / folder).mkdir(parents=True)
        (self._home / "HEAD").write_text("ref: refs/heads/none\n")
        (self._home / "config").write_text(
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        )

    def ignored(self, paths: Sequence[str], rules: dict[str, bytes], exclude: bytes) -> set[str]:
        """Return the paths that ignore rules exclude.

        Args:
            paths: relative paths; a directory's ends with `/`.
            rules: the content of each `.gitignore`, by the relative path of its folder (`""`: the
                root).
            exclude: the content of `.git/info/exclude`.

        Raises:
            GitFailed: git is missing or failed.
        """
        if not paths or not (rules or exclude):
            return set()
        tree = self._scratch / "rules"
        for folder, content in {"": b"", **rules}.items():
            (tree / folder).mkdir(parents=True, exist_ok=True)
            (tree / folder / ".gitignore").write_bytes(content)
        (self._home / "info" / "exclude").write_bytes(exclude)
        for path in paths:
            if path.endswith("/"):
                (tree / path).mkdir(parents=True, exist_ok=True)
        arguments = ["check-ignore", "--no-index", "-z", "--stdin"]
        with self._start(arguments, tree, {"GIT_WORK_TREE": str(tree)}, subprocess.PIPE) as process:
            # with "./" before it, no path is taken for a pattern
            answer, _ = process.communicate(
                b"".join(b"./%s\0" % os.fsencode(path) for path in paths)
            )
        if process.returncode not in (0, 1):
            raise PrivateGitFailed(f"git check-ignore ended with {process.returncode}")
        return {os.fsdecode(path[2:]) for path in answer.split(b"\0") if path}

    def compare(self, before: Iterable[GitFile], after: Iterable[GitFile]) -> dict[str, PathDiff]:
        """Return git's data about each path that differs between two sets of files.

        Args:
            before: the files of the snapshot.
            after: the files of the result.

        Raises:
            GitFailed: git is missing or failed.
        """
        self._import(before, after)
        sides = ("refs/heads/before^{tree}", "refs/heads/after^{tree}")
        with self._start([*_DIFF, *sides], self._elsewhere, {}, subprocess.PIPE) as process:
            counts, _ = process.communicate()
        if process.returncode:
            raise PrivateGitFailed(f"git diff-tree ended with {process.returncode}")
        return dict(_path_diffs(counts))

    def _import(self, before: Iterable[GitFile], after: Iterable[GitFile]) -> None:
        arguments = ["fast-import", "--quiet", "--done", "--depth=0", "--big-file-threshold=512k"]
        with self._start(arguments, self._elsewhere, {}, subprocess.DEVNULL) as process:
            stream = process.stdin
            assert stream is not None  # noqa: S101 - requested above
            try:
                for name, files in (("before", before), ("after", after)):
                    stream.write(
                        b"commit refs/heads/%s\ncommitter f <f> 0 +0000\ndata 0\n" % name.encode()
                    )
                    for file in files:
                        _write_file(stream, file)
                stream.write(b"done\n")
                stream.close()
            except BrokenPipeError:
                pass  # its exit code is checked below
        if process.returncode:
            raise PrivateGitFailed(f"git fast-import ended with {process.returncode}")

    def _start(
        self, arguments: Sequence[str], folder: Path, more: dict[str, str], output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._elsewhere),
            "LC_ALL": "C",
            "GIT_DIR": str(self._home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            **more,
        }
        settings = (
            "core.compression=0",
            "core.protectNTFS=false",
            "core.protectHFS=false",
            "core.fsmonitor=false",
            "core.fsync=none",  # all of it is thrown away
            "fastimport.unpackLimit=1",  # one pack instead of hundreds of loose objects
        )
        options = [option for setting in settings for option in ("-c", setting)]
        try:
            return subprocess.Popen(  # noqa: S603 - git, with our own arguments
                ["git", *options, *arguments],  # noqa: S607 - where the machine has it
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise PrivateGitFailed("git could not be started") from error


def _write_file(stream: IO[bytes], file: GitFile) -> None:
    """Write one file for `git fast-import`."""
    name = _UNQUOTED.sub(lambda found: b"\\%03o" % found[0][0], os.fsencode(file.path))
    content = file.content
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    stream.write(b'M %s inline "%s"\ndata %d\n' % (file.mode.encode(), name, size))
    if isinstance(content, bytes):
        stream.write(content)
    else:
        with content.open("rb") as source:
            shutil.copyfileobj(source, stream, _COPY_BYTES)
    stream.write(b"\n")


def _path_diffs(counts: bytes) -> Iterator[tuple[str, PathDiff]]:
    """Parse the output of `--numstat -z`: `added TAB removed TAB path NUL`.

    A rename has both its paths after a NUL.
    """
    fields = iter(counts.split(b"\0"))
    for field in fields:
        if not field:
            continue
        added, removed, raw = field.split(b"\t", 2)
        from_path = None if raw else os.fsdecode(next(fields))
        path = os.fsdecode(raw or next(fields))
        binary = added == b"-"
        lines = (0, 0) if binary else (int(added), int(removed))
        yield path, PathDiff(from_path, *lines, binary)


class Steps:
    """What is left of the steps that all comparisons of a bundle may take together."""

    def __init__(self, steps: int) -> None:
        self.left = steps


def changed_lines(before: bytes, after: bytes, steps: Steps) -> tuple[int, int] | None:
    """Return how many lines a change adds and removes.

    Args:
        before: the text before.
        after: the text after.
        steps: each comparison of two lines takes one of them.

    Returns:
        None when it would take too many steps.
    """
    old, new = _lines(before), _lines(after)
    first, last = 0, 0
    shorter = min(len(old), len(new))
    while first < shorter and old[first] == new[first]:
        first += 1
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    old_counts, new_counts = Counter(old), Counter(new)
    old_common = [line for line in old if line in new_counts]
    new_common = [line for line in new if line in old_counts]
    edits = _edits(old_common, new_common, steps)
    if edits is None:
        return None
    kept = (len(old_common) + len(new_common) - edits) // 2
    return len(new) - kept, len(old) - kept


def _lines(content: bytes) -> list[bytes]:
    """Return the lines; a last one without an end equals none with one."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [*lines, last + b"\n"] if last else lines


def _edits(old: list[bytes], new: list[bytes], steps: Steps) -> int | None:
    """Return the fewest removed and added lines (E. W. Myers: An O(ND) difference algorithm).

    `furthest[k]`: how many lines of `old` the best way with so many edits gets through that ends
    where it is k lines ahead of `new`.
    """
    furthest = {1: 0}
    for edits in range(min(len(old) + len(new), _MAX_EDITS) + 1):
        for ahead in range(-edits, edits + 1, 2):
            below, above = furthest.get(ahead - 1, -1), furthest.get(ahead + 1, -1)
            at = above if ahead == -edits or (ahead != edits and below < above) else below + 1
            start = at
            while at < len(old) and at - ahead < len(new) and old[at] == new[at - ahead]:
                at += 1
            furthest[ahead] = at
            steps.left -= 1 + at - start
            if at >= len(old) and at - ahead >= len(new):
                return edits
        if steps.left < 0:
            break
    return None


class Change(NamedTuple):
    """A path with what is there before and after."""

    path: str
    before: ChangedVersion | None
    after: ChangedVersion | None


class _File(NamedTuple):
    """A path that only one side has."""

    path: str
    version: ChangedVersion


def make_diffs(
    changes: Iterable[Change], contents: ChangedContents, git: Callable[[], PrivateGit]
) -> dict[str, PathDiff]:
    """Return what the list says of each path with a file, of a renamed one the path after.

    Args:
        changes: the changes.
        contents: what the files hold.
        git: makes a private repository; called if there is something to ask git.

    Raises:
        GitFailed: git is missing or failed.
    """
    found: dict[str, PathDiff] = {}
    created, removed = [], []
    sides: tuple[list[_File], list[_File]] = ([], [])
    steps = Steps(_MAX_STEPS)
    for path, before, after in changes:
        was, is_now = _file(path, before), _file(path, after)
        if was and is_now:
            diff = _edited(was.version, is_now.version, contents, steps)
            if diff is not None:
                found[path] = diff
            else:
                sides[0].append(was)
                sides[1].append(is_now)
        elif was:
            removed.append(was)
        elif is_now:
            created.append(is_now)
    renames = dict(_exact_renames(removed, created, contents))
    sources = {diff.from_path for diff in renames.values()}
    created = [file for file in created if file.path not in renames]
    removed = [file for file in removed if file.path not in sources]
    if _may_be_renamed(removed, created, contents):
        sides[0].extend(removed)
        sides[1].extend(created)
    else:
        found.update((file.path, _removed(file.version, contents)) for file in removed)
        found.update((file.path, _created(file.version, contents)) for file in created)
    if any(sides):
        before_side, after_side = ([_git_file(*file, contents) for file in side] for side in sides)
        found.update(git().compare(before_side, after_side))
    return found | renames


def _file(path: str, version: ChangedVersion | None) -> _File | None:
    return None if version is None or version.sha256 is None else _File(path, version)


def _git_file(path: str, version: ChangedVersion, contents: ChangedContents) -> GitFile:
    return GitFile(path, version.git_mode, contents.of(version))


def _edited(
    before: ChangedVersion, after: ChangedVersion, contents: ChangedContents, steps: Steps
) -> PathDiff | None:
    """Return the diff of a path that both sides have; None when git is to make it."""
    if contents.is_binary(before) or contents.is_binary(after):
        return PathDiff(None, 0, 0, binary=True)
    if before.sha256 == after.sha256:
        return PathDiff(None, 0, 0, binary=False)
    old, new = contents.of(before), contents.of(after)
    if isinstance(old, bytes) and isinstance(new, bytes):
        lines = changed_lines(old, new, steps)
        return lines and PathDiff(None, *lines, binary=False)
    return None


def _created(version: ChangedVersion, contents: ChangedContents) -> PathDiff:
    binary = contents.is_binary(version)
    return PathDiff(None, 0 if binary else contents.lines(version), 0, binary)


def _removed(version: ChangedVersion, contents: ChangedContents) -> PathDiff:
    binary = contents.is_binary(version)
    return PathDiff(None, 0, 0 if binary else contents.lines(version), binary)


def _exact_renames(
    removed: list[_File], created: list[_File], contents: ChangedContents
) -> Iterator[tuple[str, PathDiff]]:
    """Yield what was renamed without an edit, where there is one path before and one after."""
    sources, targets = _by_content(removed), _by_content(created)
    for key in sources.keys() & targets.keys():
        if len(sources[key]) == len(targets[key]) == 1:
            (source,), (target,) = sources[key], targets[key]
            binary = contents.is_binary(target.version)
            yield target.path, PathDiff(source.path, 0, 0, binary)


def _by_content(files: list[_File]) -> dict[tuple[str, str | None], list[_File]]:
    found: dict[tuple[str, str | None], list[_File]] = {}
    for file in files:
        found.setdefault((file.version.kind, file.version.sha256), []).append(file)
    return found


def _may_be_renamed(removed: list[_File], created: list[_File], contents: ChangedContents) -> bool:
    """Return whether git may find that one of the new files was one of those that are gone."""
    if _by_content(removed).keys() & _by_content(created).keys():
        return True
    sources = {file.version for file in removed if _is_compared(file.version)}
    targets = {file.version for file in created if _is_compared(file.version)}
    if len(sources) * len(targets) > _MAX_PAIRS:
        return True
    spans: dict[ChangedVersion, Counter[bytes] | None] = {}
    for source in sources:
        for target in targets:
            larger = max(source.size_bytes, target.size_bytes)
            if abs(source.size_bytes - target.size_bytes) > larger / 2:
                continue
            for version in (source, target):
                if version not in spans:
                    spans[version] = _spans(contents.of(version))
            old, new = spans[source], spans[target]
            if old is None or new is None or _shared(old, new) > _SURE_SHARE * larger:
                return True
    return False


def _is_compared(version: ChangedVersion) -> bool:
    return version.kind == "file" and version.size_bytes > 0


def _spans(content: bytes | Path) -> Counter[bytes] | None:
    """Return how often each piece of a content is in it, as git compares files.

    None for a content of too many pieces.
    """
    if isinstance(content, Path):
        return None
    lines = content.replace(b"\r\n", b"\n").split(b"\n", _MAX_SPANS)
    if any(len(line) > _SPAN_BYTES for line in lines):
        lines = [
            line[start : start + _SPAN_BYTES]
            for line in lines
            for start in range(0, max(len(line), 1), _SPAN_BYTES)
        ]
    return Counter(lines) if len(lines) <= _MAX_SPANS else None


def _shared(old: Counter[bytes], new: Counter[bytes]) -> int:
    """Return how many bytes two contents have in common, their line ends included."""
    common = old.keys() & new.keys()
    return sum(min(old[piece], new[piece]) * (len(piece) + 1) for piece in common)
