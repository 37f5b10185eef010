"""The list of changes and the patch against git itself, on trees that nobody thought of."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.workers.sandbox.inside.change_bundle import may_ignore, write_bundle
from fanout.workers.sandbox.inside.change_diffs import Steps, changed_lines
from fanout.workers.sandbox.inside.change_scan import scan_trees

File = tuple[str, bytes]
"""`file`, `program` or `link`, and the content."""

PATHS = ("a", "b.py", "folder/c", "folder/b.py", "Ümläut\n", 'quo"te\\', "-r", ".gitattributes")
LINES = [b"line %d\n" % number * (number % 3 + 1) for number in range(40)]
"""Some are pieces of several equal lines."""


def texts() -> st.SearchStrategy[bytes]:
    plain = st.lists(st.sampled_from(LINES), max_size=30).map(b"".join)
    ends = st.sampled_from([b"", b"no end", b"\r\n", b"* -diff\n", b"\0binary"])
    return st.tuples(plain, ends).map(b"".join)


def files() -> st.SearchStrategy[File]:
    kinds = st.sampled_from(["file", "file", "file", "program"])
    links = st.tuples(st.just("link"), st.sampled_from([b"a", b"elsewhere"]))
    return st.one_of(st.tuples(kinds, texts()), links)


@st.composite
def sides(draw: st.DrawFn) -> tuple[dict[str, File], dict[str, File]]:
    """Two sides whose files are often alike."""
    pool = draw(st.lists(files(), min_size=1, max_size=4))
    some = st.dictionaries(st.sampled_from(PATHS), st.one_of(st.sampled_from(pool), files()))
    before, after = draw(some), dict(draw(some))
    for path, (kind, content) in before.items():
        change = draw(st.sampled_from(["keep", "edit", "move", "as drawn"]))
        if change == "as drawn" or kind == "link":
            continue
        lines = content.splitlines(keepends=True)
        if change != "keep":
            at = draw(st.integers(0, len(lines)))
            lines[at : at + draw(st.integers(0, 6))] = draw(st.lists(st.sampled_from(LINES)))
        target = draw(st.sampled_from(PATHS)) if change == "move" else path
        after[target] = (kind, b"".join(lines))
    return before, after


def write(root: Path, side: Mapping[str, File]) -> None:
    root.mkdir()
    for path, (kind, content) in side.items():
        place = root / path
        place.parent.mkdir(exist_ok=True)
        if kind == "link":
            place.symlink_to(content.decode())
        else:
            place.write_bytes(content)
            place.chmod(0o755 if kind == "program" else 0o644)


def read(root: Path) -> dict[str, File]:
    found = {}
    for place in root.rglob("*"):
        if place.is_symlink():
            found[str(place.relative_to(root))] = ("link", os.fsencode(place.readlink()))
        elif place.is_file():
            kind = "program" if place.stat().st_mode & 0o100 else "file"
            found[str(place.relative_to(root))] = (kind, place.read_bytes())
    return found


class Repository:
    """Two commits of git's own, in a folder that is never a job's."""

    def __init__(self, folder: Path, before: Path, after: Path) -> None:
        self._folder = folder
        self._git("init", "-q", "--bare", str(folder))
        for name, tree in (("before", before), ("after", after)):
            index = {"GIT_INDEX_FILE": str(folder / name), "GIT_WORK_TREE": str(tree)}
            self._git("add", "-A", "-f", ".", folder=tree, **index)
            setattr(self, name, self._git("write-tree", **index).decode().strip())

    def diff(self, *options: str) -> bytes:
        """What git says about the two, as it is set up by default."""
        both = (getattr(self, "before"), getattr(self, "after"))  # noqa: B009
        return self._git("diff-tree", "-r", "-M50%", "--no-ext-diff", *options, *both)

    def _git(self, *arguments: str, folder: Path | None = None, **more: str) -> bytes:
        settings = ("-c", "core.autocrlf=false", "-c", "core.attributesFile=/dev/null")
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder or self._folder.parent,
            env={**os.environ, "GIT_DIR": str(self._folder), **more},
            check=True,
            capture_output=True,
        ).stdout


def listed(numstat: bytes) -> dict[str, tuple[str | None, bool, int]]:
    """By path: where it comes from, whether it is binary, and by how many lines it grows."""
    fields, found = iter(numstat.split(b"\0")[:-1]), {}
    for field in fields:
        added, removed, path = field.split(b"\t", 2)
        source = None if path else os.fsdecode(next(fields))
        name = os.fsdecode(path or next(fields))
        binary = added == b"-"
        found[name] = (source, binary, 0 if binary else int(added) - int(removed))
    return found


@settings(max_examples=int(os.environ.get("CHANGE_EXAMPLES", "20")), deadline=None)
@given(sides())
@pytest.mark.slow
def test_list_and_patch_are_those_of_git(both: tuple[dict[str, File], dict[str, File]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        before, after = root / "before", root / "after"
        for folder, side in zip((before, after), both, strict=True):
            write(folder, side)
        repository = Repository(root / "git", before, after)
        archive = io.BytesIO()
        write_bundle(archive, before, after, scan_trees(before, after))
        archive.seek(0)
        with ChangeBundle.open(archive) as bundle:
            changes, patch = bundle.changes, bundle.patch()

        expected = repository.diff("--numstat", "-z")
        assert {
            file.path: (file.from_path, file.binary, file.lines_added - file.lines_removed)
            for file in changes.files
        } == listed(expected)
        total = sum(file.lines_added + file.lines_removed for file in changes.files)
        assert total <= lines_of(expected)
        shape = ("-p", "--binary", "--full-index", "--no-color")
        assert patch == repository.diff(*shape)
        if patch:
            subprocess.run(["git", "apply", "-"], cwd=before, input=patch, check=True)
        assert read(before) == both[1]


def lines_of(numstat: bytes) -> int:
    counts = (field.split(b"\t")[:2] for field in numstat.split(b"\0") if b"\t" in field)
    return sum(int(count) for pair in counts for count in pair if count.isdigit())


@given(st.lists(st.sampled_from(LINES)), st.lists(st.sampled_from(LINES)))
def test_counted_lines_turn_one_text_into_the_other(old: list[bytes], new: list[bytes]) -> None:
    before, after = b"".join(old), b"".join(new)

    counted = changed_lines(before, after, Steps(10**6))

    if counted is not None:
        assert counted[0] - counted[1] == after.count(b"\n") - before.count(b"\n")
        assert changed_lines(after, before, Steps(10**6)) == counted[::-1]


def test_what_repeats_and_moves_is_counted_with_few_steps_or_left_to_git() -> None:
    block, other = [b"%d\n" % n for n in range(900)], [b"x%d\n" % n for n in range(900)]

    assert changed_lines(b"".join(block), b"".join(other), Steps(10)) == (900, 900)
    assert changed_lines(b"".join(block + other), b"".join(other + block), Steps(10**6)) is None
    assert changed_lines(b"a\nb\nc\nd\n", b"d\nc\nb\na\n", Steps(2)) is None


def test_git_is_asked_about_ignore_rules_that_may_fit_and_no_others() -> None:
    usual = b"# Python\n__pycache__/\n*.py[cod]\n/build/\n*.log\n!keep.log\n.env\n\n*~ \r\n"

    assert not may_ignore([usual], ["src/new.py", "docs/builder.md", "a log"])
    for path in ("src/new.pyc", "build/x.py", "a/b.log", ".env", "x~", "build/"):
        assert may_ignore([usual], [path]), path
    for rule in (b"[!x]*", b"[]a]", rb"\!a", b"a/**", "ä".encode(), b" a"):
        assert may_ignore([rule], ["a", " a", "ä", "!a"]), rule
    assert not may_ignore([], ["a"])
    assert may_ignore([b"\n".join(b"%d" % n for n in range(1000))], [f"x{n}" for n in range(1000)])
