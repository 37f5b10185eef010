"""Credentials in a repository's own files stay with the parent."""

import asyncio
import subprocess
from pathlib import Path
from typing import IO

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.repositories.git_data import (
    carried_content,
    fresh_configuration,
    is_carried,
    without_user,
)
from fanout.orchestrator.workspace.snapshots import archive, contents, scan
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, SandboxSpec

CANARY = "canary-5f2e"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        (f"https://{CANARY}@example.com/a.git", "https://example.com/a.git"),
        (f"https://u:{CANARY}@example.com/a.git", "https://example.com/a.git"),
        (f"https://example.com/a.git?private_token={CANARY}", "https://example.com/a.git"),
        (f"http://u:p@{CANARY}@example.com:8/a", "http://example.com:8/a"),
        (f"ssh://git:{CANARY}@example.com/a.git", "ssh://git@example.com/a.git"),
        ("git@example.com:a/b.git", "git@example.com:a/b.git"),
        ("ssh://git@example.com/a.git", "ssh://git@example.com/a.git"),
        ("https://example.com/a@b.git", "https://example.com/a@b.git"),
        (f"https://u:/{CANARY}@example.com/a.git", None),
        (f"ext::sh -c {CANARY}", None),
        ("/srv/git/a.git", None),
        ("file:///srv/git/a.git", None),
    ],
)
def test_a_remote_keeps_its_address_and_loses_its_credentials(url: str, kept: str | None) -> None:
    assert without_user(url) == kept


def test_a_configuration_is_written_anew_with_remotes_and_branches_only() -> None:
    content = f"""
[core]
	repositoryformatversion = 1
	bare = false
	fsmonitor = /bin/{CANARY}
	sshCommand = {CANARY}
[extensions]
	objectFormat = sha256
	partialClone = origin
[include]
	path = {CANARY}
[credential]
	helper = "!f() {{ echo password={CANARY}; }}; f"
[http "https://h/"]
	extraHeader = {CANARY}
[remote "origin"]
	url = https://{CANARY}@h/a.git
	fetch = +refs/heads/*:refs/remotes/origin/*
	uploadpack = {CANARY}
	promisor = true
[branch "main"]
	remote = origin
	merge = refs/heads/main
[remote "x\\"]y"]
	url = https://h/a.git
""".encode()
    fresh = fresh_configuration(content).decode()
    assert CANARY not in fresh
    assert fresh.splitlines() == [
        *("[core]", "\trepositoryformatversion = 1", "\tbare = false"),
        *("[extensions]", "\tobjectformat = sha256", "\tpartialclone = origin"),
        *('[branch "main"]', "\tmerge = refs/heads/main"),
        *('[branch "main"]', "\tremote = origin"),
        *('[remote "origin"]', "\tfetch = +refs/heads/*:refs/remotes/origin/*"),
        *('[remote "origin"]', "\tpromisor = true"),
        *('[remote "origin"]', "\turl = https://h/a.git"),
    ]


def test_of_a_work_trees_configuration_only_the_sparse_checkout_is_carried() -> None:
    content = (
        f"[core]\n\tsparseCheckout = true\n\tfsmonitor = {CANARY}\n[http]\n\tproxy = {CANARY}\n"
    )

    carried = carried_content("config.worktree", content.encode())

    assert carried == b"[core]\n\tsparsecheckout = true\n"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("HEAD", True),
        ("config", True),
        ("refs/heads/main", True),
        (f"objects/ab/{'c' * 38}", True),
        (f"objects/pack/pack-{'c' * 40}.idx", True),
        ("index", True),
        ("info/exclude", True),
        ("config.worktree", True),
        ("FETCH_HEAD", False),
        ("COMMIT_EDITMSG", False),
        ("credentials", False),
        ("hooks/pre-push", False),
        ("logs/HEAD", False),
        ("lfs/objects/a", False),
        ("rr-cache/a/preimage", False),
        ("objects/info/alternates", False),
        ("objects/ab/notes.txt", False),
        ("index.lock", False),
        ("refs/heads/main.lock", False),
    ],
)
def test_only_known_files_of_a_repository_are_carried(path: str, expected: bool) -> None:
    assert is_carried(path, is_folder=False) is expected


def test_a_reference_that_holds_anything_else_stays_at_home() -> None:
    assert carried_content("refs/heads/main", CANARY.encode()) is None
    assert carried_content("HEAD", b"ref: refs/heads/main\n") == b"ref: refs/heads/main\n"


def changed(bundle: IO[bytes]) -> list[str]:
    with bundle, ChangeBundle.open(bundle) as opened:
        return [file.path for file in opened.changes.files]


def repository(root: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)

    root.mkdir()
    (root / "a.txt").write_text("one\n")
    git("init", "-q")
    git("remote", "add", "origin", f"https://x-access-token:{CANARY}@example.com/a.git")
    git("config", "http.https://example.com/.extraheader", f"AUTHORIZATION: basic {CANARY}")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    with (root / ".git/logs/HEAD").open("a") as log:
        log.write(f"pull https://{CANARY}@example.com/a.git: fast-forward\n")


async def test_a_job_gets_a_repository_that_works_without_credentials_and_has_no_changes(
    tmp_path,
) -> None:
    root = tmp_path / "root"
    await asyncio.to_thread(repository, root)
    blobs = BlobStore(str(tmp_path / "blobs"))
    blob_id = await Workspace(root).snapshot(blobs)
    snapshot_archive = await blobs.fetch(blob_id)
    assert CANARY.encode() not in await asyncio.to_thread(snapshot_archive.read_bytes)
    assert CANARY in await asyncio.to_thread((root / ".git/config").read_text)

    limits = Limits(
        timeout_seconds=60, cpus=1, memory_bytes=2**30, pids=50, disk_bytes=2**30, network="none"
    )
    spec = SandboxSpec(
        job_id=new_job_id(), attempt=1, image="none", limits=limits, snapshot=blob_id
    )
    provider = await asyncio.to_thread(LocalProvider, blobs.fetch, tmp_path / "jobs", "credentials")
    async with provider.open(spec) as sandbox:
        shown = await sandbox.run(
            Command(argv="git remote get-url origin; git log --oneline; git status -s")
        )
        lines = shown.output.decode().splitlines()
        assert lines[0] == "https://example.com/a.git"
        assert lines[1].endswith("first")
        assert len(lines) == 2
        assert await asyncio.to_thread(changed, await sandbox.changes()) == []
    await provider.discard(spec.job_id)
    await provider.close()


def test_a_file_that_is_too_large_to_clean_is_left_out_and_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(contents, "_HELD_BYTES", 10)
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (root / ".git/config").write_text(f"url = https://{CANARY}@example.com/")
    with (tmp_path / "archive").open("wb") as sink:
        omitted = archive.write(root, scan.scan(root), sink, max_bytes=10**6).omitted
    assert [file.path for file in omitted.unreadable] == [".git/config"]
    assert CANARY.encode() not in (tmp_path / "archive").read_bytes()
