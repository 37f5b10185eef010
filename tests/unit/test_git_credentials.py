"""Credentials in a repository's own files stay with the parent."""

import asyncio
import subprocess
from pathlib import Path
from typing import IO

import pytest

from orchestrator.jobs.changes import ChangeBundle
from orchestrator.jobs.spec import Limits, new_job_id
from orchestrator.workspace import snapshot
from orchestrator.workspace.blobs import BlobStore
from orchestrator.workspace.git_credentials import may_hold_credentials, without_credentials
from orchestrator.workspace.workspace import Workspace
from workers.sandbox.local.provider import LocalProvider
from workers.sandbox.protocol import Command, SandboxSpec

CANARY = "canary-5f2e"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"\turl = https://{CANARY}@example.com/a.git\n", "\turl = https://example.com/a.git\n"),
        (f"\turl = https://u:{CANARY}@example.com/a.git\n", "\turl = https://example.com/a.git\n"),
        (f"\turl = HTTP://u:p@{CANARY}@example.com:8/a\n", "\turl = HTTP://example.com:8/a\n"),
        (
            f'[url "https://{CANARY}@h/"]\n\tinsteadOf = git@h:\n',
            '[url "https://h/"]\n\tinsteadOf = git@h:\n',
        ),
        (f"\tproxy = socks5://u:{CANARY}@h:1\n", "\tproxy = socks5://u@h:1\n"),
        (f"[http]\n\textraHeader = Authorization: {CANARY}\n[a]\n", "[http]\n\t\n[a]\n"),
        (
            f'[http "https://h/"] extraheader=X \\\n {CANARY}\n\tb = c\n',
            '[http "https://h/"] \n\tb = c\n',
        ),
        (f"[github]\n\ttoken = {CANARY}", "[github]\n\t"),
    ],
)
def test_what_is_secret_goes_and_the_rest_stays(before: str, after: str) -> None:
    assert without_credentials(before.encode()).decode() == after


@pytest.mark.parametrize(
    "kept",
    [
        "[core]\n\tbare = false\n",
        "\turl = git@example.com:a/b.git\n",
        "\turl = ssh://git@example.com/a.git\n",
        "\turl = https://example.com/a@b.git\n",
        "\turl = /srv/git/a.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
        "[user]\n\temail = somebody@example.com\n",
        "\tpasswordless = true\n",
    ],
)
def test_what_is_no_secret_is_untouched(kept: str) -> None:
    assert without_credentials(kept.encode()).decode() == kept


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".git/config", True),
        (".git/config.worktree", True),
        (".git/FETCH_HEAD", True),
        (".git/logs/refs/heads/main", True),
        ("vendor/x/.git/config", True),
        (".git/modules/x/config", True),
        ("mirror.git/config", True),
        (".git/objects/ab/cd", False),
        ("config", False),
        ("src/config", False),
        ("logs/app.log", False),
    ],
)
def test_only_gits_own_files_are_looked_into(path: str, expected: bool) -> None:
    assert may_hold_credentials(path) is expected


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
    archive = await blobs.fetch(blob_id)
    assert CANARY.encode() not in await asyncio.to_thread(archive.read_bytes)
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
    monkeypatch.setattr(snapshot, "_HELD_BYTES", 10)
    root = tmp_path / "root"
    (root / "x.git").mkdir(parents=True)
    (root / "x.git/config").write_text(f"url = https://{CANARY}@example.com/")
    with (tmp_path / "archive").open("wb") as sink:
        skipped = snapshot.write(root, snapshot.scan(root), sink, max_bytes=10**6)
    assert [file.path for file in skipped] == ["x.git/config"]
    assert CANARY.encode() not in (tmp_path / "archive").read_bytes()
