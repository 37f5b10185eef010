"""What a run or a job changed gets into a folder, or waits for it, and never half."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.bundles import BundleBuilder, tree_of
from tests.integration.cli.conftest import Ended, Fanout, StandIn
from tests.integration.cli.test_run import with_services

pytestmark = [
    pytest.mark.redis,
    pytest.mark.timeout(300),
    pytest.mark.blocks_loop("the commands are waited for in the loop"),
]

OLD = b"one\ntwo\nthree\nfour\nfive\n"
YOURS = b"one\ntwo\nthree\nfour\nYOURS\n"
THEIRS = b"THEIRS\ntwo\nthree\nfour\nfive\n"


@pytest.fixture(scope="module")
def shared_fanout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fanout]:
    yield from with_services(tmp_path_factory.mktemp("landing"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.txt").write_bytes(OLD)
    return made


async def job(
    fanout: Fanout, stand_in: StandIn, root: Path, bundle: BundleBuilder, summary: str = "Done."
) -> str:
    """A job that has ended with these changes."""
    submitted = fanout("submit", "x", "--workspace", str(root))
    assert submitted.code == 0, submitted.err
    job_id = submitted.out.strip()
    content = bundle.build()
    with ChangeBundle.open(content) as opened:
        files = opened.changes.summary()
    changes = await stand_in.blobs.put(content.getvalue())
    await stand_in.finish(job_id, changes=changes, files_modified=files, summary=summary)
    return job_id


async def test_a_job_lands_three_way_in_a_folder_that_somebody_edits(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    job_id = await job(fanout, stand_in, root, BundleBuilder().edit("a.txt", OLD, THEIRS))
    (root / "a.txt").write_bytes(YOURS)

    first, second = (fanout("apply", job_id, "--into", str(root)) for _ in range(2))

    assert (root / "a.txt").read_bytes() == b"THEIRS\ntwo\nthree\nfour\nYOURS\n"
    assert (first.code, second.code) == (0, 0), first.err
    assert first.out.startswith("merged")
    assert second.out.startswith("already")


async def test_both_sides_of_a_conflict_are_kept_shown_and_forgotten(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    theirs = OLD.replace(b"five", b"JOBS")
    made = BundleBuilder().edit("a.txt", OLD, theirs)
    job_id = await job(fanout, stand_in, root, made.add("deep/new", made.file(b"new\n")))
    assert fanout("diff", job_id, "--conflicts").err.endswith("has no conflicts.\n")
    (root / "a.txt").write_bytes(YOURS)

    done = fanout("apply", job_id, "--into", str(root))

    place = Path(fanout.env["FANOUT_STATE_DIR"]) / "conflicts" / job_id
    assert done.code == 1
    assert f"Both sides of the conflicts are in {place}" in done.err
    kept = {side: (place / side / "a.txt").read_bytes() for side in ("base", "yours", "theirs")}
    assert kept == {"base": OLD, "yours": YOURS, "theirs": theirs}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (place, *place.rglob("*")))
    shown = fanout("diff", job_id, "--conflicts")
    assert shown.code == 0
    assert "-YOURS\n+JOBS\n" in shown.out
    assert f"{place}/{{base,yours,theirs}}/a.txt" in shown.out
    (entry,) = fanout("diff", job_id, "--conflicts", "--json").json["conflicts"]
    assert (entry["path"], entry["job_id"]) == ("a.txt", job_id)

    (root / "a.txt").write_bytes(OLD)
    assert fanout("apply", job_id, "--into", str(root)).code == 0
    assert not place.exists()
    assert fanout("diff", job_id, "--conflicts").out == ""


async def test_what_of_a_task_could_not_be_merged_is_shown_with_both_sides(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    task = await job(fanout, stand_in, root, BundleBuilder().edit("a.txt", OLD, b"task\n"))
    parent = fanout("submit", "x", "--workspace", str(root)).out.strip()
    claim = await stand_in.claim(parent)
    conflict = {"path": "a.txt", "reason": "Both sides changed the same lines."}
    landed = {"id": task, "outcome": "out", "conflicts": [conflict]}
    await stand_in.note(claim, EventType.CHILD_LANDED, landed)
    content = BundleBuilder().edit("a.txt", OLD, b"parent\n").build().getvalue()
    changes = await stand_in.blobs.put(content)
    await stand_in.finish(parent, claim=claim, changes=changes)

    shown = fanout("diff", parent, "--conflicts")

    assert shown.code == 0
    assert "-parent\n+task\n" in shown.out
    assert f"task {task[-8:]} into job {parent[-8:]}" in shown.out


async def test_several_jobs_and_a_whole_tree_are_applied(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    one = await job(fanout, stand_in, root, BundleBuilder().edit("a.txt", OLD, THEIRS))
    made = BundleBuilder()
    two = await job(fanout, stand_in, root, made.add("b.txt", made.file(b"b\n")))

    done = fanout("apply", one, two, "--into", str(root), "--json")

    assert done.code == 0, done.err
    assert [entry["job_id"] for entry in done.json["jobs"]] == [one, two]
    assert (root / "b.txt").exists()


async def test_a_whole_tree_is_applied_and_what_failed_is_said(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    lines = "".join(f'{{"description": "{name}", "workspace": "project"}}\n' for name in "abc")
    (root.parent / "jobs.jsonl").write_text(lines)
    ids = fanout("submit", "--file", "jobs.jsonl", "--json").json["job_ids"]
    for name, job_id in zip("ab", ids, strict=False):
        made = BundleBuilder()
        content = made.add(name, made.file(b"x")).build().getvalue()
        await stand_in.finish(job_id, changes=await stand_in.blobs.put(content))
    assert fanout("apply", ids[0], "--tree", "--into", str(root)).code == 1  # one works still
    await stand_in.finish(ids[2], JobState.FAILED)

    done = fanout("apply", ids[0], "--tree", "--into", str(root))

    assert done.code == 0, done.err
    assert f"Job {ids[2][-8:]} did not succeed" in done.err
    assert sorted(tree_of(root)) == ["a", "a.txt", "b"]


async def test_one_command_applies_all_jobs_of_a_label_and_reports_each(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    spec = '{{"description": "{}", "workspace": "project", "labels": {{"wave": "{}"}}}}\n'
    (root.parent / "jobs.jsonl").write_text("".join(map(spec.format, "abcde", "22221")))
    ids = fanout("submit", "--file", "jobs.jsonl", "--json").json["job_ids"]
    bundles = [
        BundleBuilder().edit("a.txt", OLD, THEIRS),
        BundleBuilder().edit("a.txt", OLD, THEIRS.replace(b"THEIRS", b"OTHERS")),
        BundleBuilder().edit("a.txt", OLD, THEIRS),
        None,
        BundleBuilder().edit("a.txt", OLD, b"wave one\n"),
    ]
    for job_id, bundle in zip(ids, bundles, strict=True):
        changes = bundle and await stand_in.blobs.put(bundle.build().getvalue())
        await stand_in.finish(job_id, changes=changes)
    to = ("--label", "wave=2", "--into", str(root))

    patches = fanout("diff", "--label", "wave=2")
    stats = fanout("diff", ids[0], "--tree", "--label", "wave=2", "--json")
    done = fanout("apply", *to)
    again = fanout("apply", *to, "--json")

    assert patches.code == 0, patches.err
    assert [line.split()[1].rstrip(":") for line in patches.err.splitlines()] == [
        job_id[-8:] for job_id in ids[:4]
    ]
    assert [entry["job_id"] for entry in stats.json["jobs"]] == ids[:4]
    assert done.code == 1
    told = [line for line in done.err.splitlines() if line[:8] in {job_id[-8:] for job_id in ids}]
    outcomes = ["merged", "conflicts", "nothing to do", "nothing to do"]
    assert [line.partition("  ")[2].partition(":")[0] for line in told] == outcomes
    assert [line[:8] for line in told] == [job_id[-8:] for job_id in ids[:4]]
    assert "4 jobs: 1 merged, 2 nothing to do, 1 with conflicts." in done.err
    assert (root / "a.txt").read_bytes() == THEIRS
    told_again = [(entry["job_id"], entry["outcome"]) for entry in again.json["jobs"]]
    assert told_again == list(zip(ids, ["nothing to do", *outcomes[1:]], strict=False))


async def test_a_job_without_changes_is_applied_and_what_is_not_named_is_asked_for(
    fanout: Fanout, stand_in: StandIn, root: Path
) -> None:
    job_id = fanout("submit", "x", "--workspace", str(root)).out.strip()
    await stand_in.finish(job_id, summary="There was nothing to change.")

    done = fanout("apply", job_id)
    on_branch = fanout("apply", job_id, "--branch", "new")

    assert (done.code, done.out) == (0, "")
    assert done.err == f"{job_id[-8:]}  nothing to do: it changed nothing\n"
    assert (on_branch.code, on_branch.out) == (0, "")
    assert on_branch.err == "No job changed anything.\n"
    for wrong in ([], ["--tree"], [job_id, "--label", "k=v"], ["--label", "k"]):
        refused = fanout("apply", *wrong)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=20", "fanout-test", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_a_full_disk_lands_nothing_and_says_so_in_one_sentence(
    fanout: Fanout, stand_in: StandIn, small_disk: Path
) -> None:
    (small_disk / "a.txt").write_bytes(OLD)
    (small_disk / "filler").write_bytes(b"x" * 40_000)
    made = BundleBuilder().edit("a.txt", OLD, THEIRS)
    made.add("big", made.file(b"x" * 40_000)).add("c", made.file(b"c"))
    job_id = await job(fanout, stand_in, small_disk, made)

    done = fanout("apply", job_id, "--into", str(small_disk))

    assert done.code == 1
    assert done.err == (
        f"Nothing was merged into {small_disk}: No space left on device. Make room and merge again.\n"
    )
    assert sorted(tree_of(small_disk)) == ["a.txt", "filler"]
    assert (small_disk / "a.txt").read_bytes() == OLD
    (small_disk / "filler").unlink()
    assert fanout("apply", job_id, "--into", str(small_disk)).code == 0


def run(fanout: Fanout, goal: str, *options: str) -> Ended:
    return fanout("run", goal, "--workspace", "a", "--yes", *options, timeout=60)


@pytest.mark.slow
def test_a_run_that_does_not_land_is_applied_later(own: Fanout) -> None:
    done = run(own, "quick", "--no-land")
    assert done.code == 0, done.err
    assert not (own.folder / "a/new.txt").exists()
    (command,) = [line for line in done.err.splitlines() if "fanout apply" in line]
    job_id = command.partition("fanout apply ")[2].split()[0]

    for _ in range(2):
        assert own("apply", job_id, "--into", "a").code == 0
    assert (own.folder / "a/new.txt").read_text() == "new\n"


@pytest.mark.slow
def test_the_end_of_a_run_names_where_both_sides_lie(own: Fanout) -> None:
    child = own.start("run", "quick", "--workspace", "a", "--yes", "--verify", "sleep 2")
    assert child.stderr is not None
    for line in iter(child.stderr.readline, b""):
        if b"$" in line or line.startswith(b"Run "):
            break
    (own.folder / "a/new.txt").write_text("mine\n")

    out, err = child.communicate(timeout=60)

    assert child.wait(60) == 1, err
    assert b"See: fanout diff" in err
    assert b"--conflicts" in err
    assert b"both sides are in" in err
    assert (own.folder / "a/new.txt").read_text() == "mine\n"
    assert out == b"Quickly done.\n"


@pytest.mark.slow
def test_a_landing_without_room_is_said_and_landed_by_attach(own: Fanout, small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012
        for number in range(100):
            (small_disk / str(number)).touch()

    done = own("run", "quick", "--workspace", str(small_disk), "--yes", timeout=60)

    assert (done.code, done.out) == (1, "Quickly done.\n"), done.err
    assert "Nothing was merged into" in done.err
    (line,) = [line for line in done.err.splitlines() if "fanout attach" in line]
    (small_disk / "0").unlink()
    assert own(*line.partition("fanout ")[2].split(), timeout=60).code == 0
    assert (small_disk / "new.txt").read_text() == "new\n"
