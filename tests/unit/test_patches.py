"""The patch of a change bundle, made of both sides where it is read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle, MalformedBundle, PatchFailed
from tests.bundles import Bundle, BundleBuilder

NAMES = ("plain.py", "with space.txt", "ümläut.txt", 'quote".txt', "tab\tname.txt", "a b/b a/x")


def patch_of(bundle: Bundle, path: str | None = None) -> bytes:
    bundle.seek(0)
    with ChangeBundle.open(bundle) as opened:
        return opened.patch(path)


def test_the_patch_that_an_older_release_stored_is_not_read() -> None:
    bundle = BundleBuilder().edit("a", b"1\n", b"2\n").build()  # its `patch` is empty

    assert b"-1\n+2\n" in patch_of(bundle)


def test_each_path_has_a_patch_of_its_own_whatever_its_name_is() -> None:
    builder = BundleBuilder()
    for name in NAMES:
        builder.edit(name, b"old\n", f"{name}\ndiff --git a/plain.py b/plain.py\n".encode())
    gone, program = builder.file(b"x\n"), builder.file(b"x\n", 0o755)
    builder.rename("old name", "new name", gone, program).delete("gone", builder.link("a"))
    builder.add("folder", builder.directory()).edit("bytes", b"\0a", b"\0b")
    bundle = builder.build()

    for name in NAMES:
        part = patch_of(bundle, name)
        assert part.count(b"\n+++ ") == 1, name
        assert f"\n+{name}\n".encode() in part
    assert b"rename from old name\nrename to new name\n" in patch_of(bundle, "new name")
    assert b"old mode 100644\nnew mode 100755\n" in patch_of(bundle, "new name")
    assert b"deleted file mode 120000\n" in patch_of(bundle, "gone")
    assert b"GIT binary patch\n" in patch_of(bundle, "bytes")
    assert patch_of(bundle, "folder") == patch_of(bundle, "absent") == b""


def test_large_contents_and_many_folders_are_written_as_git_reads_them(tmp_path: Path) -> None:
    builder, large = BundleBuilder(), b"0123456789abcde\n" * 20_000
    builder.edit("large", large, large + b"end\n")
    for number in range(300):
        builder.add(f"{number % 20}/{number}/x", builder.file(b"%d\n" % number))
    patch = patch_of(builder.build())

    (tmp_path / "large").write_bytes(large)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, check=True)

    assert (tmp_path / "large").read_bytes() == large + b"end\n"
    assert (tmp_path / "19/299/x").read_bytes() == b"299\n"


@pytest.mark.parametrize(
    "paths", [[""], ["a//b"], ["/a"], ["a\0b"], ["a/"], ["a", "a/b"], ["a/b", "a"], ["a", "a"]]
)
def test_paths_that_no_repository_can_have_are_refused(paths: list[str]) -> None:
    builder = BundleBuilder()
    for path in paths:
        builder.add(path, builder.file(b"x"))

    with pytest.raises(PatchFailed, match="cannot be in a repository"):
        patch_of(builder.build())


def test_more_folders_than_jobs_make_are_refused() -> None:
    builder = BundleBuilder()
    for number in range(120):
        builder.add("/".join([str(number), *"d" * 1_000, "x"]), builder.file(b"x"))

    with pytest.raises(PatchFailed, match="100000 folders"):
        patch_of(builder.build())


def test_a_bundle_without_a_content_has_no_patch() -> None:
    with pytest.raises(MalformedBundle):
        patch_of(BundleBuilder().edit("a", b"1", b"2").forget(b"1").build())
