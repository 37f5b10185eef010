"""`--branch`: a run or a job becomes commits, and the files of a person stay as they are."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bundles import BundleBuilder, tree_of
from tests.integration.cli.conftest import Fanout, StandIn, in_folders
from tests.integration.cli.test_landing import OLD, THEIRS, job
from tests.integration.cli.test_run import ended, with_services

pytestmark = [
    pytest.mark.redis,
    pytest.mark.timeout(300),
    pytest.mark.blocks_loop("the commands are waited for in the loop"),
]


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True
    )
    return done.stdout.decode()


def commit_all(folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")


@pytest.fixture(scope="module")
def shared_fanout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fanout]:
    yield from with_services(tmp_path_factory.mktemp("branch"))


@pytest.fixture
def own(shared_fanout: Fanout, tmp_path: Path) -> Fanout:
    made = in_folders(Fanout(tmp_path, shared_fanout.env))
    commit_all(tmp_path / "a")
    return made


def files(root: Path) -> dict[str, tuple[str, int, bytes]]:
    return {
        name: entry
        for name, entry in tree_of(root).items()
        if not name.startswith((".git/objects", ".git/refs"))
    }


@pytest.mark.slow
def test_a_run_becomes_a_branch_and_the_last_words_say_how_to_see_it(own: Fanout) -> None:
    root = own.folder / "a"
    (root / "kept.txt").write_text("not committed\n")
    before = files(root)

    done = own("run", "slow", "--workspace", "a", "--branch", "feature/it", timeout=60)

    assert done.code == 0, done.err
    assert files(root) == before
    names = git(root, "diff", "--name-only", "main", "feature/it").split()
    assert names == ["one.txt", "two.txt"]
    authors = git(root, "log", "--format=%an", "main..feature/it").split()
    assert authors == ["general-purpose", "general-purpose"]
    assert "Branch feature/it has 2 new commits." in done.err
    assert "has changes that are not committed" in done.err
    assert f"git -C {root} diff HEAD...feature/it" in done.err
    assert f"git -C {root} merge feature/it" in done.err


@pytest.mark.slow
def test_a_detached_run_is_landed_on_its_branch_by_attach_and_once(own: Fanout) -> None:
    root = own.folder / "a"
    run_id = own(
        "run", "quick", "--workspace", "a", "--branch", "later", "--detach", timeout=60
    ).out.strip()
    git(root, "commit", "-q", "--allow-empty", "-m", "somebody goes on")

    first, second = (own("attach", run_id, timeout=60) for _ in range(2))

    assert (first.code, second.code) == (0, 0), first.err
    assert git(root, "merge-base", "main", "later") == git(root, "rev-parse", "main~1")
    assert "before" in second.err
    assert not (root / "new.txt").exists()
    assert own("apply", run_id, "--into", "a", "--branch", "later").code == 0
    assert git(root, "rev-list", "--count", "later").strip() == "2"


@pytest.mark.slow
def test_a_run_that_continues_one_on_a_branch_starts_from_it(own: Fanout) -> None:
    root = own.folder / "a"
    begun = own("run", "grow", "--workspace", "a", "--branch", "one", "--json", timeout=60)
    run_id = begun.json["root_id"]
    assert len(begun.json["commits"]) == 1

    done = own("run", "more", "--continue", run_id, "--branch", "two", timeout=60)

    assert done.code == 0, done.err
    assert git(root, "show", "two:list.txt") == "one\ntwo\n"
    assert git(root, "merge-base", "one", "two") == git(root, "rev-parse", "one")


@pytest.mark.slow
def test_a_run_that_continues_one_that_has_not_landed_brings_both(own: Fanout) -> None:
    root = own.folder / "a"
    begun = own("run", "grow", "--workspace", "a", "--no-land", "--json", timeout=60)

    done = own(
        "run", "more", "--continue", begun.json["root_id"], "--branch", "both", "--json", timeout=60
    )

    assert done.code == 0, done.err
    assert [one["job_id"] for one in done.json["commits"]] == [
        begun.json["root_id"],
        done.json["root_id"],
    ]
    assert git(root, "show", "both:list.txt") == "one\ntwo\n"
    assert git(root, "show", "both~1:list.txt") == "one\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--branch", "main"), "choose another name"),
        (("--branch", "a..b"), "not a valid branch name"),
        (("--branch", "x", "--no-land"), "leave one of them out"),
        (("--branch", "x", "--workspace", "b"), "is in no Git repository"),
    ],
)
def test_what_cannot_be_a_branch_is_refused_before_the_run(
    own: Fanout, options: tuple[str, ...], words: str
) -> None:
    done = own("run", "quick", "--workspace", "a", *options, timeout=60)

    assert done.code == 2, done.err
    assert words in done.err
    assert done.err.strip().count("\n") == 0
    assert "Run " not in done.err


@pytest.mark.slow
def test_a_branch_that_appears_meanwhile_is_not_moved_and_nothing_is_lost(own: Fanout) -> None:
    root = own.folder / "a"
    child = own.start("run", "quick", "--workspace", "a", "--branch", "mine", "--verify", "sleep 2")
    assert child.stderr is not None
    for line in iter(child.stderr.readline, b""):
        if line.startswith(b"Run "):
            break
    git(root, "branch", "mine")

    told = ended(child)

    assert told.code == 1
    assert git(root, "rev-parse", "mine") == git(root, "rev-parse", "main")
    (command,) = [line for line in told.err.splitlines() if "--branch OTHER" in line]
    words = command.partition("fanout ")[2].replace("OTHER", "other").split()
    assert own(*words).code == 0
    assert git(root, "show", "other:new.txt") == "new\n"


async def test_a_job_is_applied_to_a_branch(
    fanout: Fanout, stand_in: StandIn, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_bytes(OLD)
    commit_all(root)
    made = BundleBuilder().edit("a.txt", OLD, THEIRS).edit("gone", b"x", b"y")
    job_id = await job(fanout, stand_in, root, made, "Mended it\n\nAll of it.")
    to = ("--into", str(root), "--branch")

    done = fanout("apply", job_id, *to, "fix")
    again = fanout("apply", job_id, *to, "fix", "--json")

    assert done.code == 1
    assert "conflict  gone" in done.err
    assert "Both sides of the conflicts are in" in done.err
    assert "Branch fix has 1 new commit." in done.err
    message = git(root, "log", "-1", "--format=%B", "fix")
    assert message.startswith("Mended it\n\nAll of it.\n\nFanout-Job: ")
    assert again.json["outcome"] == "before"
    assert (root / "a.txt").read_bytes() == OLD
    taken = fanout("apply", job_id, *to, "main")
    assert (taken.code, taken.err.count("\n")) == (1, 1)
    assert "--branch OTHER" in taken.err
    assert fanout("apply", job_id, *to, "fix", "--check").code == 2
