"""What a job has committed outside of its workspace's files is named in its summary."""

import asyncio
import time

import pytest

from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.attempt.changes import with_stray_commits
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, SandboxSpec
from tests.unit.test_outside_repositories import git

LIMITS = Limits(
    timeout_seconds=60, cpus=1, memory_bytes=2**30, pids=50, disk_bytes=2**30, network="none"
)
AS_AGENT = "git config user.name agent; git config user.email agent@localhost; "


def old_repository(root):
    """A repository with a branch of the person that is not checked out."""
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "checkout", "-qb", "persons")
    git(root, "commit", "-qm", "persons", "--allow-empty")
    git(root, "checkout", "-q", "main")
    time.sleep(1.1)  # the times of commits are whole seconds
    return root


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("git checkout -qb feature; echo 2 > a.txt; git commit -qam two; git checkout -q main",
         ["feature (1", " two)"]),
        ("echo 2 > a.txt; git stash -q", ["stash"]),
        ("git checkout -q --detach; echo 2 > a.txt; git commit -qam two; git checkout -q main",
         ["a detached HEAD (1", " two)"]),
        ("git checkout -q --detach; echo 2 > a.txt; git commit -qam two; git checkout -qB main", []),
        ("echo 2 > a.txt; git commit -qam two; git commit -q --amend -m better", []),
        ("echo 2 > a.txt; git commit -qam two", []),
        ("git checkout -qb feature; echo 2 > a.txt; git commit -qam two", []),
        ("rm -rf .git", []),
    ],
)  # fmt: skip
async def test_commits_that_do_not_come_back_are_named(tmp_path, command, said):
    root = await asyncio.to_thread(old_repository, tmp_path / "root")
    blobs = BlobStore(str(tmp_path / "blobs"))
    began = time.time()
    snapshot = await Workspace(root).snapshot(blobs)
    spec = SandboxSpec(
        job_id=new_job_id(), attempt=1, image="none", limits=LIMITS, snapshot=snapshot
    )
    provider = await asyncio.to_thread(LocalProvider, blobs.fetch, tmp_path / "jobs", "commits")
    async with provider.open(spec) as sandbox:
        await sandbox.run(Command(argv=AS_AGENT + command))
        summary = await with_stray_commits("Done.", sandbox, began)
        long = await with_stray_commits("x" * MAX_SUMMARY_CHARACTERS, sandbox, began)
    await provider.discard(spec.job_id)
    await provider.close()

    assert summary.startswith("Done.")
    assert "persons" not in summary
    assert all(text in summary for text in said)
    assert (summary == "Done.") is not bool(said)
    assert len(long) <= MAX_SUMMARY_CHARACTERS
    assert all(text in long for text in said)
