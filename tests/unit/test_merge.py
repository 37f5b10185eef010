import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.git.text_merge import merge_text
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.workspace import Workspace, WorkspaceUnusable
from tests.bundles import BundleBuilder, tree_of

LINES = b"one\ntwo\nthree\nfour\nfive\n"


async def put_in(root: Path, bundle: BundleBuilder, *, check: bool = False) -> MergeReport:
    with ExitStack() as stack:
        opened = await asyncio.to_thread(stack.enter_context, ChangeBundle.open(bundle.build()))
        return await merge(Workspace(root), opened, check=check)


async def merged(root: Path, bundle: BundleBuilder) -> MergeReport:
    """Rehearse, merge, merge again.

    The rehearsal foretells the merge, the second merge changes nothing.
    """
    untouched = tree_of(root)
    foretold = await put_in(root, bundle, check=True)
    assert tree_of(root) == untouched

    report = await put_in(root, bundle)
    assert report == foretold

    after = tree_of(root)
    again = await put_in(root, bundle)
    assert tree_of(root) == after
    if report.complete:
        assert {entry.how for entry in again.applied} <= {"already"}
        assert again.complete
    assert not [path for path in after if path.endswith(".partial")]
    return report


def hows(report: MergeReport) -> dict[str, str]:
    return {entry.path: entry.how for entry in report.applied}


def kinds(report: MergeReport) -> dict[str, str]:
    return {conflict.path: conflict.kind for conflict in report.conflicts}


async def test_a_change_of_an_untouched_file_is_taken(tmp_path):
    (tmp_path / "a").write_bytes(LINES)

    report = await merged(tmp_path, BundleBuilder().edit("a", LINES, b"new\n"))

    assert hows(report) == {"a": "taken"}
    assert (tmp_path / "a").read_bytes() == b"new\n"


async def test_a_change_that_is_there_already_changes_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"new\n")

    report = await merged(tmp_path, BundleBuilder().edit("a", LINES, b"new\n"))

    assert hows(report) == {"a": "already"}


async def test_changes_of_different_lines_are_merged(tmp_path):
    (tmp_path / "a").write_bytes(LINES.replace(b"one", b"ONE"))

    report = await merged(
        tmp_path, BundleBuilder().edit("a", LINES, LINES.replace(b"four", b"FOUR"))
    )

    assert hows(report) == {"a": "merged"}
    assert (tmp_path / "a").read_bytes() == b"ONE\ntwo\nthree\nFOUR\nfive\n"


async def test_merges_of_lines_that_lie_apart_start_git_for_the_settings_once(
    tmp_path, monkeypatch
):
    root = tmp_path / "root"
    root.mkdir()
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", root], check=True)
    (root / "a").write_bytes(LINES)
    assert (await put_in(root, BundleBuilder().edit("a", LINES, LINES + b"six\n"))).complete
    monkeypatch.setenv("PATH", str(tmp_path))

    for line in (b"one", b"four"):
        bundle = BundleBuilder().edit("a", LINES, LINES.replace(line, line.upper()))
        assert hows(await put_in(root, bundle)) == {"a": "merged"}

    assert (root / "a").read_bytes() == b"ONE\ntwo\nthree\nFOUR\nfive\nsix\n"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_git_merges_is_merged_in_the_same_way(data):
    base = data.draw(st.lists(st.sampled_from("abcdefgh\t}"), min_size=4, max_size=12))
    sides = []
    for _ in range(2):
        side = base.copy()
        for at in data.draw(st.lists(st.integers(0, len(base) - 1), min_size=1, max_size=3)):
            side[at] = data.draw(st.sampled_from(["", "x\n", "}\n", base[0], f"{base[at]}\nz"]))
        sides.append(side)
    texts = ["\n".join(lines).encode() for lines in (sides[0], base, sides[1])]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        by_git = subprocess.run(
            ["git", "merge-file", "-p", *paths], check=False, capture_output=True
        )

    if by_git.returncode == 0:
        assert merge_text(texts[1], texts[0], texts[2]) in {None, by_git.stdout}


async def test_changes_of_neighbouring_lines_are_merged(tmp_path):
    (tmp_path / "a").write_bytes(LINES.replace(b"three", b"THREE"))

    report = await merged(
        tmp_path, BundleBuilder().edit("a", LINES, LINES.replace(b"four", b"FOUR"))
    )

    assert hows(report) == {"a": "merged"}
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\nTHREE\nFOUR\nfive\n"


async def test_changes_of_one_line_are_a_conflict_and_the_file_stays_without_markers(tmp_path):
    here = LINES.replace(b"three", b"here")
    (tmp_path / "a").write_bytes(here)

    report = await merged(
        tmp_path, BundleBuilder().edit("a", LINES, LINES.replace(b"three", b"there"))
    )

    assert kinds(report) == {"a": "overlap"}
    assert (tmp_path / "a").read_bytes() == here


async def test_a_conflict_in_one_file_does_not_keep_the_others_out(tmp_path):
    (tmp_path / "a").write_bytes(b"here\n")
    (tmp_path / "b").write_bytes(LINES)
    bundle = BundleBuilder().edit("a", LINES, b"there\n").edit("b", LINES, b"new\n")

    report = await merged(tmp_path, bundle)

    assert kinds(report) == {"a": "overlap"}
    assert hows(report) == {"b": "taken"}


async def test_binary_files_changed_on_both_sides_are_a_conflict(tmp_path):
    (tmp_path / "a").write_bytes(b"\0here")

    report = await merged(tmp_path, BundleBuilder().edit("a", b"\0base", b"\0there"))

    assert kinds(report) == {"a": "binary"}
    assert (tmp_path / "a").read_bytes() == b"\0here"


async def test_line_ends_and_a_missing_last_one_are_kept(tmp_path):
    base = b"one\r\ntwo\r\nthree\r\nfour"
    (tmp_path / "a").write_bytes(base.replace(b"one", b"ONE"))

    report = await merged(tmp_path, BundleBuilder().edit("a", base, base.replace(b"four", b"FOUR")))

    assert report.complete
    assert (tmp_path / "a").read_bytes() == b"ONE\r\ntwo\r\nthree\r\nFOUR"


async def test_a_new_file_in_new_directories_is_added_with_its_mode(tmp_path):
    bundle = BundleBuilder()

    report = await merged(tmp_path, bundle.add("x/y/run.sh", bundle.file(b"#!/bin/sh\n", 0o755)))

    assert hows(report) == {"x/y/run.sh": "taken"}
    assert tree_of(tmp_path)["x/y/run.sh"] == ("file", 0o755, b"#!/bin/sh\n")


async def test_a_file_added_on_both_sides_is_fine_when_equal_and_else_a_conflict(tmp_path):
    (tmp_path / "same").write_bytes(b"1")
    (tmp_path / "other").write_bytes(b"2")
    bundle = BundleBuilder()

    report = await merged(
        tmp_path, bundle.add("same", bundle.file(b"1")).add("other", bundle.file(b"3"))
    )

    assert hows(report) == {"same": "already"}
    assert kinds(report) == {"other": "both_added"}


async def test_a_deleted_file_goes_with_the_directories_that_it_leaves_empty(tmp_path):
    (tmp_path / "x/y").mkdir(parents=True)
    (tmp_path / "x/y/a").write_bytes(b"1")
    bundle = BundleBuilder()

    report = await merged(tmp_path, bundle.delete("x/y/a", bundle.file(b"1")))

    assert hows(report) == {"x/y/a": "taken"}
    assert tree_of(tmp_path) == {}


async def test_an_emptied_directory_stays_when_the_job_kept_it(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/a").write_bytes(b"1")
    bundle = BundleBuilder()

    report = await merged(
        tmp_path, bundle.delete("x/a", bundle.file(b"1")).add("x", bundle.directory())
    )

    assert report.complete
    assert list(tree_of(tmp_path)) == ["x"]


async def test_deleting_what_was_changed_and_changing_what_was_deleted_are_conflicts(tmp_path):
    (tmp_path / "changed").write_bytes(b"2")
    bundle = BundleBuilder().edit("deleted", b"1", b"2")

    report = await merged(tmp_path, bundle.delete("changed", bundle.file(b"1")))

    assert kinds(report) == {"changed": "deleted", "deleted": "deleted"}
    assert (tmp_path / "changed").read_bytes() == b"2"


async def test_a_directory_is_deleted_only_when_it_is_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_bytes(b"1")
    bundle = BundleBuilder()

    report = await merged(
        tmp_path, bundle.delete("empty", bundle.directory()).delete("full", bundle.directory())
    )

    assert hows(report) == {"empty": "taken"}
    assert kinds(report) == {"full": "directory"}


async def test_a_rename_takes_the_changes_made_here_with_it(tmp_path):
    (tmp_path / "old").write_bytes(LINES.replace(b"one", b"ONE"))
    bundle = BundleBuilder()
    after = bundle.file(LINES.replace(b"five", b"FIVE"))

    report = await merged(tmp_path, bundle.rename("old", "new", bundle.file(LINES), after))

    assert hows(report) == {"new": "merged"}
    assert tree_of(tmp_path) == {"new": ("file", 0o644, b"ONE\ntwo\nthree\nfour\nFIVE\n")}


async def test_a_rename_onto_another_file_is_a_conflict(tmp_path):
    (tmp_path / "old").write_bytes(LINES)
    (tmp_path / "new").write_bytes(b"mine\n")
    bundle = BundleBuilder()

    report = await merged(
        tmp_path, bundle.rename("old", "new", bundle.file(LINES), bundle.file(LINES))
    )

    assert kinds(report) == {"new": "rename"}
    assert (tmp_path / "old").read_bytes() == LINES


async def test_a_rename_that_stopped_half_way_is_finished(tmp_path):
    (tmp_path / "old").write_bytes(LINES)
    (tmp_path / "new").write_bytes(LINES)
    bundle = BundleBuilder()

    report = await merged(
        tmp_path, bundle.rename("old", "new", bundle.file(LINES), bundle.file(LINES))
    )

    assert report.complete
    assert list(tree_of(tmp_path)) == ["new"]


@pytest.mark.parametrize(("old", "new"), [("run", "run/main"), ("run/main", "run")])
async def test_a_file_may_move_into_a_directory_of_its_own_name_and_back(tmp_path, old, new):
    (tmp_path / old).parent.mkdir(exist_ok=True)
    (tmp_path / old).write_bytes(LINES)
    bundle = BundleBuilder()

    report = await merged(tmp_path, bundle.rename(old, new, bundle.file(LINES), bundle.file(LINES)))

    assert report.complete
    assert (tmp_path / new).read_bytes() == LINES


TAKEN_PLACES = {
    "a file takes the place of a folder that moves": {"one": "deep", "deep/d/f": "far/d/f"},
    "a folder takes the place of a file that moves": {"one": "x", "deep/d/f": "one/d/f"},
    "a folder takes the place of a file that moves below it": {"one": "one/main", "deep/d/f": "x"},
    "a file and a folder change places": {"one": "deep", "deep/d/f": "one/d/f", "deep/g": "one/g"},
    "each takes the place of the next": {"one": "deep", "deep/d/f": "two/f", "two": "three/two/x"},
    "files move below each other's names": {"one": "two/x", "two": "one/x"},
}  # fmt: skip


@pytest.mark.parametrize("moves", TAKEN_PLACES.values(), ids=TAKEN_PLACES)
async def test_what_moves_away_makes_room_for_what_takes_its_place(tmp_path, moves):
    (tmp_path / "deep/d").mkdir(parents=True)
    for old in moves:
        (tmp_path / old).write_bytes(b"of %s\n" % old.encode())
    bundle = BundleBuilder()
    for old, new in moves.items():
        content = bundle.file(b"of %s\n" % old.encode())
        bundle.rename(old, new, content, content)

    report = await merged(tmp_path, bundle)

    assert report.complete
    files = {
        path: content for path, (kind, _, content) in tree_of(tmp_path).items() if kind == "file"
    }
    assert files == {new: b"of %s\n" % old.encode() for old, new in moves.items()}


async def test_a_link_takes_the_place_of_a_folder_that_moves(tmp_path):
    (tmp_path / "deep/d").mkdir(parents=True)
    (tmp_path / "deep/d/f").write_bytes(LINES.replace(b"one", b"ONE"))
    bundle = BundleBuilder()
    after = bundle.file(LINES.replace(b"five", b"FIVE"))
    bundle.rename("deep/d/f", "real/d/f", bundle.file(LINES), after)

    report = await merged(tmp_path, bundle.add("deep", bundle.link("real")))

    assert report.complete
    assert (tmp_path / "deep").readlink() == Path("real")
    assert (tmp_path / "deep/d/f").read_bytes() == b"ONE\ntwo\nthree\nfour\nFIVE\n"


async def test_what_stays_in_the_way_of_a_rename_is_a_conflict(tmp_path):
    (tmp_path / "deep").mkdir()
    for path, content in {"one": b"1\n", "deep/f": LINES, "deep/mine": b"mine\n"}.items():
        (tmp_path / path).write_bytes(content)
    bundle = BundleBuilder()
    bundle.rename("one", "deep", bundle.file(b"1\n"), bundle.file(b"1\n"))
    bundle.rename("deep/f", "far/f", bundle.file(LINES), bundle.file(LINES))

    report = await merged(tmp_path, bundle)

    assert kinds(report) == {"deep": "rename"}
    assert (tmp_path / "one").read_bytes() == b"1\n"
    assert (tmp_path / "deep/mine").read_bytes() == b"mine\n"


async def test_the_executable_bit_is_merged_apart_from_content(tmp_path):
    (tmp_path / "a").write_bytes(b"mine\n")
    (tmp_path / "a").chmod(0o640)
    bundle = BundleBuilder()
    program = bundle.change("a", bundle.file(LINES, 0o644), bundle.file(LINES, 0o755))

    report = await merged(tmp_path, program)

    assert report.complete
    assert tree_of(tmp_path)["a"] == ("file", 0o750, b"mine\n")


async def test_a_mode_is_kept_when_the_content_changes(tmp_path):
    (tmp_path / "a").write_bytes(LINES)
    (tmp_path / "a").chmod(0o600)

    await merged(tmp_path, BundleBuilder().edit("a", LINES, b"new\n"))

    assert tree_of(tmp_path)["a"][1] == 0o600


async def test_a_file_becomes_a_link_and_a_link_a_file(tmp_path):
    (tmp_path / "file").write_bytes(LINES)
    (tmp_path / "link").symlink_to("file")
    bundle = BundleBuilder()
    bundle.change("file", bundle.file(LINES), bundle.link("link"))
    bundle.change("link", bundle.link("file"), bundle.file(LINES))

    report = await merged(tmp_path, bundle)

    assert report.complete
    assert (tmp_path / "file").readlink() == Path("link")
    assert tree_of(tmp_path)["link"] == ("file", 0o644, LINES)


async def test_a_link_changed_on_both_sides_is_a_conflict(tmp_path):
    (tmp_path / "link").symlink_to("mine")
    bundle = BundleBuilder()

    report = await merged(
        tmp_path, bundle.change("link", bundle.link("base"), bundle.link("theirs"))
    )

    assert kinds(report) == {"link": "binary"}


async def test_a_directory_becomes_a_file_and_a_file_a_directory(tmp_path):
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/x").write_bytes(b"1")
    (tmp_path / "f").write_bytes(b"2")
    bundle = BundleBuilder()
    bundle.delete("d/sub/x", bundle.file(b"1")).add("d", bundle.file(b"now a file"))
    bundle.delete("f", bundle.file(b"2")).add("f/y", bundle.file(b"now a directory"))

    report = await merged(tmp_path, bundle)

    assert report.complete
    assert (tmp_path / "d").read_bytes() == b"now a file"
    assert (tmp_path / "f/y").read_bytes() == b"now a directory"


async def test_a_link_becomes_a_directory_with_files(tmp_path):
    (tmp_path / "d").symlink_to("elsewhere")
    bundle = BundleBuilder()
    bundle.delete("d", bundle.link("elsewhere")).add("d/x", bundle.file(b"new\n"))

    report = await merged(tmp_path, bundle)

    assert report.complete
    assert (tmp_path / "d" / "x").read_bytes() == b"new\n"
    assert not (tmp_path / "d").is_symlink()


async def test_types_that_differ_are_conflicts(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine").write_bytes(b"1")
    (tmp_path / "f").write_bytes(b"2")
    os.mkfifo(tmp_path / "pipe")
    bundle = BundleBuilder().edit("pipe", b"1", b"2")

    report = await merged(
        tmp_path, bundle.add("d", bundle.file(b"x")).add("f/below", bundle.file(b"y"))
    )

    assert kinds(report) == {"d": "type", "f/below": "type", "pipe": "type"}


async def test_odd_names_arrive(tmp_path):
    name = "new\nline 'quote' \"ü\" \\ -x"
    bundle = BundleBuilder()

    report = await merged(tmp_path, bundle.add(name, bundle.file(b"1")))

    assert report.complete
    assert (tmp_path / name).read_bytes() == b"1"


async def test_what_the_bundle_does_not_carry_is_told(tmp_path):
    report = await merged(tmp_path, BundleBuilder().skip("huge.bin"))

    assert [file.path for file in report.skipped] == ["huge.bin"]
    assert not report.complete


HOSTILE_PATHS = [
    "../out", "/out", "a/../../out", "./a", "a//b", "", ".", "..", "a\0b",
    ".git/hooks/pre-commit", "sub/.git/config", ".GIT/config", ".Git", ".git /config", "git~1/config",
    ".g\u200cit/config", ".git::$INDEX_ALLOCATION/config",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_a_path_that_leaves_the_workspace_or_names_git_data_is_refused(tmp_path, path):
    root = tmp_path / "root"
    root.mkdir()
    bundle = BundleBuilder()

    report = await merged(root, bundle.add(path, bundle.file(b"evil")))

    assert [entry.path for entry in report.refused] == [path]
    assert list(tree_of(tmp_path)) == ["root"]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_nothing_is_deleted_or_moved_by_a_hostile_path(tmp_path, path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "out").write_bytes(b"1")
    bundle = BundleBuilder()
    bundle.delete(path, bundle.file(b"1")).rename(
        path, "here", bundle.file(b"1"), bundle.file(b"1")
    )

    report = await merged(root, bundle)

    assert len(report.refused) == 2
    assert list(tree_of(tmp_path)) == ["out", "root"]


async def test_no_path_goes_through_a_link(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (outside / "victim").write_bytes(LINES)
    bundle = BundleBuilder().edit("link/victim", LINES, b"evil")
    bundle.add("link/new", bundle.file(b"evil")).add("link/deep/er", bundle.file(b"evil"))

    report = await merged(root, bundle)

    assert len(report.refused) == 3
    assert tree_of(outside) == {"victim": ("file", 0o644, LINES)}


async def test_no_path_goes_through_a_link_that_the_bundle_brings(tmp_path):
    bundle = BundleBuilder()
    bundle.add("link", bundle.link("target")).add("link/x", bundle.file(b"evil"))
    (tmp_path / "target").mkdir()

    report = await merged(tmp_path, bundle)

    assert [entry.path for entry in report.refused] == ["link/x"]
    assert list(tree_of(tmp_path)) == ["link", "target"]


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../out", "../../out", "a/../../out", "a/..", ".git/hooks", "x/.GIT"]
)
async def test_a_link_that_points_outside_or_into_git_data_is_refused(tmp_path, target):
    bundle = BundleBuilder()

    report = await merged(tmp_path, bundle.add("link", bundle.link(target)))

    assert [entry.path for entry in report.refused] == ["link"]
    assert tree_of(tmp_path) == {}


async def test_a_link_to_a_neighbour_above_is_fine(tmp_path):
    bundle = BundleBuilder()

    report = await merged(tmp_path, bundle.add("a/b/link", bundle.link("../../c/d")))

    assert report.complete


async def test_a_link_is_replaced_and_not_written_through(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "victim").write_bytes(LINES)
    (root / "link").symlink_to(tmp_path / "victim")
    bundle = BundleBuilder()
    bundle.change("link", bundle.link(str(tmp_path / "victim")), bundle.file(b"new"))

    report = await merged(root, bundle)

    assert report.complete
    assert (tmp_path / "victim").read_bytes() == LINES


async def test_a_tampered_bundle_brings_nothing(tmp_path):
    (tmp_path / "a").write_bytes(LINES)
    bundle = BundleBuilder().edit("a", LINES, b"good").tamper(b"good", b"evil")
    bundle.add("b", bundle.file(b"lost")).forget(b"lost")

    report = await merged(tmp_path, bundle)

    assert [entry.path for entry in report.refused] == ["a", "b"]
    assert tree_of(tmp_path) == {"a": ("file", 0o644, LINES)}


async def test_a_change_without_its_sides_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(LINES)
    bundle = BundleBuilder().change("a", None, None)

    report = await merged(tmp_path, bundle.change("b", None, bundle.file(b"1"), from_path="a"))

    assert [entry.path for entry in report.refused] == ["a", "b"]


async def test_a_missing_workspace_is_said(tmp_path):
    with pytest.raises(WorkspaceUnusable, match="name a folder that exists"):
        await put_in(tmp_path / "nowhere", BundleBuilder())


async def test_a_disk_that_takes_no_more_leaves_the_folder_as_it_was(tmp_path):
    script = """
import asyncio, resource, signal, sys
from pathlib import Path
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.git.text_merge import merge_text
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.staged_merge import MergeUndone
from fanout.orchestrator.workspace.workspace import Workspace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
async def main():
    with ChangeBundle.open(Path(sys.argv[2])) as bundle:
        try:
            await merge(Workspace(Path(sys.argv[1])), bundle)
        except MergeUndone as error:
            print(error)
asyncio.run(main())
"""
    root = tmp_path / "root"
    root.mkdir()
    (root / "big").write_bytes(b"old")
    (root / "small").write_bytes(b"old")
    bundle = BundleBuilder().edit("big", b"old", b"x" * 5000).edit("small", b"old", b"new")
    (tmp_path / "bundle").write_bytes(bundle.build().getvalue())

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, root, tmp_path / "bundle"],
        capture_output=True,
        check=True,
        text=True,
    )

    assert done.stdout.startswith(f"Nothing was merged into {root}: File too large")
    assert {name: entry[2] for name, entry in tree_of(root).items()} == {
        "big": b"old",
        "small": b"old",
    }


@pytest.mark.slow
async def test_many_merges_at_once_from_several_processes_all_arrive(tmp_path):
    script = """
import asyncio, sys
from pathlib import Path
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.git.text_merge import merge_text
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.workspace import Workspace
async def main():
    workspace = Workspace(Path(sys.argv[1]))
    async def one(path):
        with ChangeBundle.open(Path(path)) as bundle:
            assert (await merge(workspace, bundle)).complete
    await asyncio.gather(*map(one, sys.argv[2:]))
asyncio.run(main())
"""
    root = tmp_path / "root"
    root.mkdir()
    base = b"".join(b"line %d\n" % number for number in range(40))
    (root / "a").write_bytes(base)
    bundles = []
    for number in range(40):
        path = tmp_path / f"bundle{number}"
        changed = base.replace(b"line %d\n" % number, b"changed %d\n" % number)
        path.write_bytes(BundleBuilder().edit("a", base, changed).build().getvalue())
        bundles.append(path)

    running = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, root, *bundles[start::4])
        for start in range(4)
    ]
    exit_codes = [await process.wait() for process in running]

    assert exit_codes == [0, 0, 0, 0]
    assert (root / "a").read_bytes() == base.replace(b"line", b"changed")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.slow
def test_bundles_that_edit_different_lines_all_arrive_in_any_order(data):
    line = st.text(alphabet="ab \t}", max_size=3)
    lines = data.draw(st.lists(line, min_size=2, max_size=12))
    ended = data.draw(st.booleans())
    edited = data.draw(
        st.lists(st.integers(0, len(lines) - 1), unique=True, min_size=1, max_size=5)
    )

    def text(changed: set[int]) -> bytes:
        parts = [f"new {i}" if i in changed else old for i, old in enumerate(lines)]
        return ("\n".join(parts) + ("\n" if ended else "")).encode()

    bundles = [BundleBuilder().edit("a", text(set()), text({index})) for index in edited]

    async def in_some_order(root: Path) -> None:
        (root / "a").write_bytes(text(set()))
        for bundle in bundles:
            assert (await put_in(root, bundle)).complete
        assert (root / "a").read_bytes() == text(set(edited))
        for bundle in bundles:
            assert set(hows(await put_in(root, bundle)).values()) == {"already"}
        assert (root / "a").read_bytes() == text(set(edited))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(in_some_order(Path(folder)))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_merging_any_change_into_any_file_twice_is_merging_it_once(data):
    text = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d"]), max_size=8).map("".join)
    base, ours, theirs = (data.draw(text).encode() for _ in range(3))
    _merge_twice(base, ours, theirs)


def test_where_lines_repeat_a_second_merge_finds_what_the_first_said():
    _merge_twice(b"a\na\nb\n", b"b\na\n", b"a\nb\nb\n")


def _merge_twice(base: bytes, ours: bytes, theirs: bytes) -> None:
    async def twice(root: Path) -> None:
        (root / "a").write_bytes(ours)
        first = await put_in(root, BundleBuilder().edit("a", base, theirs))
        once = (root / "a").read_bytes()
        second = await put_in(root, BundleBuilder().edit("a", base, theirs))
        assert (root / "a").read_bytes() == once
        assert bool(first.conflicts) == bool(second.conflicts)
        if first.conflicts:
            assert once == ours

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(twice(Path(folder)))
