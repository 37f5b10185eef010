"""Secrets of a person's folder are not in what jobs get, and the person is told which they are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tarfile
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.spec import Limits, new_job_id
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.secret_files import secret_content, secret_name
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, SandboxSpec
from tests.integration.cli.conftest import fanout, ledger_url, private_redis  # noqa: F401
from tests.repositories import git

CANARY = "canary7f3c"
NAME = "PRIVATE" + " KEY"  # in parts: this repository holds no key, and a test says so
KEY = f"-----BEGIN OPENSSH {NAME}-----\n{CANARY}\n-----END OPENSSH {NAME}-----\n"


def put(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


class Snapshot:
    """What a job gets of a folder."""

    def __init__(self, archive: Path, left_at_home: dict[str, str]) -> None:
        self.left_at_home = left_at_home
        self.files: dict[str, bytes] = {}
        with tarfile.open(archive) as opened:
            for member in opened:
                content = opened.extractfile(member) if member.isreg() else None
                self.files[member.name] = content.read() if content else b""

    def holds(self, text: str) -> list[str]:
        """The paths with a text in the name or the content, compressed or not."""
        return [
            path
            for path, content in self.files.items()
            if text in path or text.encode() in content + _inflated(content)
        ]


def _inflated(content: bytes) -> bytes:
    try:
        return zlib.decompress(content)
    except zlib.error:
        return b""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


async def snapshot_of(folder: Path, *include: str) -> Snapshot:
    workspace = Workspace(folder)
    blobs = BlobStore(str(folder.parent / "blobs"))
    archive = await blobs.fetch(await workspace.snapshot(blobs, frozenset(include)))
    left = {file.path: file.reason for file in workspace.left_at_home}
    return await asyncio.to_thread(Snapshot, archive, left)


SECRET_NAMES = [
    ".env", ".env.production", "deploy/prod.env", ".netrc", ".npmrc", ".pypirc", ".pgpass",
    ".git-credentials", "id_rsa", "keys/id_ed25519", "server.key", "store.p12", "a.kdbx",
    ".aws/credentials", ".ssh/config", ".kube/config", ".docker/config.json", ".ENV",
    "home/.cargo/credentials.toml", "infra/terraform.tfstate", ".config/gcloud/x.db", "secrets.yml",
]  # fmt: skip


@pytest.mark.parametrize("is_repository", [False, True], ids=["plain folder", "repository"])
async def test_files_with_secret_names_stay_at_home(root: Path, is_repository: bool) -> None:
    put(root, dict.fromkeys(SECRET_NAMES, CANARY) | {"code.py": "1", ".env.example": "KEY="})
    if is_repository:
        await asyncio.to_thread(git, root, "init", "-q")

    snapshot = await snapshot_of(root)

    assert snapshot.holds(CANARY) == []
    assert {"code.py", ".env.example"} <= set(snapshot.files)
    told = set(snapshot.left_at_home)
    assert [
        name
        for name in SECRET_NAMES
        if name not in told and not name.startswith(tuple(t for t in told if t.endswith("/")))
    ] == []


FORMS = {
    "private key": KEY,
    "AWS access key": "aws_access_key_id = AKIAABCDEFGH23456789",
    "GitHub token": f"token: ghp_{'a1B2' * 9}",
    "GitLab token": f"glpat-{'a1B2' * 5}",
    "Slack token": "xoxb-123456789012-123456789012-abcdefghijkl",
    "Stripe key": f"sk_live_{'a1B2' * 6}",
    "Google API key": f"AIza{'a1B2_' * 7}",
    "npm token": f"//registry.npmjs.org/:_authToken={'ab12' * 9}",
    "PyPI token": f"pypi-AgEIcHlwaS5vcmc{'a1B2' * 10}",
    "Anthropic key": f"sk-ant-api03-{'a1B2' * 9}",
    "OpenAI key": f"sk-proj-{'a1B2' * 9}",
    "Hugging Face token": f"hf_{'aBcd' * 9}",
}


@pytest.mark.parametrize(("name", "text"), FORMS.items(), ids=FORMS)
async def test_files_that_contain_a_credential_stay_at_home_and_are_told(
    root: Path, name: str, text: str
) -> None:
    put(root, {"tests/data.txt": f"{'x' * 300_000}\nx = '{text}'\n", "kept.txt": "1"})

    snapshot = await snapshot_of(root)

    assert set(snapshot.files) == {"kept.txt", "tests"}
    assert name in snapshot.left_at_home["tests/data.txt"]


@pytest.mark.parametrize(
    "text",
    [
        f'HEADER = "-----BEGIN RSA {NAME}-----"\n',
        "-----BEGIN CERTIFICATE-----\nMIIB\n",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n",
        "an AKIA prefix, ghp_ and npm_install, hf_token, xoxb-",
        "//registry.npmjs.org/:_authToken=${NPM_TOKEN}",
        "sk_test_abcdefabcdefabcdefabcdef",
    ],
)
def test_what_only_looks_like_a_credential_travels(text: str) -> None:
    assert secret_content(text.encode()) is None


EXAMPLES = (
    "AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE",
    "ASIAI44QH8DHBEXAMPLE",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    f"ghp_{'x' * 36}",
    f"AIza{'SyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe'}",
    f"AIza{'X' * 35}",
    "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcBrzbqgy",
    "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "sk_live_your_secret_key_here",
    f"sk_live_{'0' * 24}",
    "sk-ant-api03-your-api-key-goes-here",
    f"sk-proj-{'x' * 40}",
    f"npm_{'0' * 36}",
    "//registry.npmjs.org/:_authToken=<token>",
    "//registry.npmjs.org/:_authToken=YOUR_NPM_TOKEN",
    f"-----BEGIN RSA {NAME}-----\nMIIEpAIBAAKCAQEA...\n-----END RSA {NAME}-----",
)


@pytest.mark.parametrize("text", EXAMPLES)
async def test_an_example_of_a_credential_travels_and_hides_no_real_one(
    root: Path, text: str
) -> None:
    put(root, {"docs/page.md": f"Set {text}\n", "both.md": f"{text}\n{FORMS['AWS access key']}\n"})

    snapshot = await snapshot_of(root)

    assert "docs/page.md" in snapshot.files or "docs" in snapshot.files
    assert set(snapshot.left_at_home) == {"both.md"}


def test_a_key_block_whose_headers_name_a_person_is_no_example() -> None:
    block = f"-----BEGIN PGP {NAME} BLOCK-----\n\nlQVYBGTest\nComment: A <a@example.com>\n"

    assert secret_content(block.encode()) is not None


@pytest.mark.parametrize("name", [".env.example", ".env.sample", "environment.py", "a.pem", "env"])
def test_names_that_only_resemble_secret_ones_travel(name: str) -> None:
    assert secret_name(name) is None


async def test_a_sub_folder_obeys_the_rules_of_its_repository(root: Path) -> None:
    put(root, {".gitignore": "*.local\nprivate/\n", "sub/.gitignore": "more\n"})
    put(
        root,
        dict.fromkeys(("sub/x.local", "sub/private/y", "sub/more", "sub/deep/z.local"), CANARY),
    )
    put(root, {"sub/code.py": "1"})
    await asyncio.to_thread(git, root, "init", "-q")
    (root / ".git/info/exclude").write_text("excluded\n")
    put(root, {"sub/excluded": CANARY})

    snapshot = await snapshot_of(root / "sub")

    assert set(snapshot.files) == {".gitignore", "code.py"}


async def test_a_folder_that_its_repository_ignores_is_a_plain_one(root: Path) -> None:
    put(root, {".gitignore": "build/\n", "build/out/a": "1", "build/out/.env": CANARY})
    await asyncio.to_thread(git, root, "init", "-q")

    assert set((await snapshot_of(root / "build/out")).files) == {"a"}


async def test_each_repository_in_a_folder_has_its_own_rules(root: Path) -> None:
    put(root, {"one/.gitignore": "*.local\n", "one/x.local": CANARY, "two/x.local": "kept"})
    await asyncio.to_thread(git, root / "one", "init", "-q")

    snapshot = await snapshot_of(root)

    assert snapshot.holds(CANARY) == []
    assert "two/x.local" in snapshot.files


def home_with_rules(folder: Path, rules: str) -> Path:
    """The home of a person who has ignore rules for all repositories."""
    configuration = "[core]\n\texcludesFile = ~/rules\n"
    put(folder / "home", {".gitconfig": configuration, "rules": rules})
    return folder / "home"


async def test_the_rules_of_a_person_hold(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"a.mine": CANARY, "b": "1"})
    await asyncio.to_thread(git, root, "init", "-q")
    monkeypatch.setenv("HOME", str(home_with_rules(tmp_path, "*.mine\n")))

    assert (await snapshot_of(root)).holds(CANARY) == []


async def test_a_repositorys_own_rules_go_before_a_persons(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, {"a.mine": CANARY, "kept.mine": "1", "b.own": CANARY})
    await asyncio.to_thread(git, root, "init", "-q")
    (root / ".git/info/exclude").write_text("b.own\n!kept.mine\n", encoding="utf-8-sig")
    monkeypatch.setenv("HOME", str(home_with_rules(tmp_path, "*.mine")))

    snapshot = await snapshot_of(root)

    assert snapshot.holds(CANARY) == []
    assert "kept.mine" in snapshot.files


async def test_a_person_includes_files_by_name(root: Path) -> None:
    put(root, {".gitignore": ".env\nbuild/\n", ".env": "A=1", "build/x/key": KEY, "build/y": "no"})
    put(root, {"tests/key.pem": KEY})
    await asyncio.to_thread(git, root, "init", "-q")

    snapshot = await snapshot_of(root, ".env", "build/x/key", "tests/key.pem")

    work_tree = {path for path in snapshot.files if not path.startswith(".git/")}
    assert work_tree == {
        ".git", ".gitignore", ".env", "build", "build/x", "build/x/key", "tests", "tests/key.pem",
    }  # fmt: skip
    assert snapshot.left_at_home == {}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", ".git/config", ""])
def test_a_definition_includes_files_of_the_workspace_only(path: str) -> None:
    with pytest.raises(ValueError, match="relative to the workspace"):
        AgentDefinition(name="a", description="b", instruction="c", include=(path,))


async def test_a_tracked_secret_stays_at_home_and_counts_as_unchanged(
    root: Path, tmp_path: Path
) -> None:
    put(root, {".env": "A=1", "code.py": "1"})
    await asyncio.to_thread(git, root, "init", "-q")
    await asyncio.to_thread(git, root, "add", "-f", ".")
    await asyncio.to_thread(git, root, "commit", "-qm", "first")
    put(root, {"added.key": CANARY, "code.py": "2"})
    await asyncio.to_thread(git, root, "add", "-f", "added.key")

    snapshot = await snapshot_of(root)

    assert snapshot.holds(CANARY) == []
    assert set(snapshot.left_at_home) == {".env", "added.key"}
    copy = tmp_path / "copy"
    put(copy, {})
    for path, content in snapshot.files.items():
        if content or path.endswith((".py", "HEAD")):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes(content)
    for folder in ("objects", "refs"):
        (copy / ".git" / folder).mkdir(parents=True, exist_ok=True)
    status = await asyncio.to_thread(
        subprocess.run, ["git", "status", "--porcelain"], cwd=copy, capture_output=True, check=True
    )
    assert status.stdout.decode() == " M code.py\n"


async def test_nothing_else_of_a_repositorys_data_travels(root: Path) -> None:
    put(root, {"a": "1"})
    await asyncio.to_thread(git, root, "init", "-q", "-b", "main")
    await asyncio.to_thread(git, root, "add", ".")
    await asyncio.to_thread(git, root, "commit", "-qm", "first")
    planted = {
        "credentials": f"https://u:{CANARY}@h",
        "config.worktree": f"[http]\n\textraHeader = {CANARY}\n",
        "FETCH_HEAD": f"{'a' * 40}\t\tbranch 'main' of https://{CANARY}@h/a\n",
        "COMMIT_EDITMSG": CANARY,
        "MERGE_MSG": CANARY,
        "description": CANARY,
        "hooks/pre-push": f"#!/bin/sh\ncurl -H {CANARY} h\n",
        "logs/HEAD": f"clone: from https://{CANARY}@h/a\n",
        "logs/refs/heads/main": CANARY,
        "lfs/objects/aa/bb": CANARY,
        "rr-cache/1/preimage": CANARY,
        "svn/.metadata": CANARY,
        "objects/info/alternates": f"/home/{CANARY}\n",
        f"objects/pack/{CANARY}.txt": CANARY,
        "refs/heads/odd": CANARY,
        "worktrees/w/gitdir": f"/home/{CANARY}/.git\n",
        "modules/inner/HEAD": "ref: refs/heads/main\n",
        "modules/inner/objects/.x": "",
        "modules/inner/refs/.x": "",
        "modules/inner/config": f'[remote "o"]\n\turl = https://{CANARY}@h/b\n',
        "modules/inner/hooks/x": CANARY,
        "included": f"[credential]\n\thelper = !echo {CANARY}\n",
    }
    put(root / ".git", planted)
    with (root / ".git/config").open("a") as config:
        config.write(
            f'[credential]\n\thelper = "!f() {{ echo password={CANARY}; }}; f"\n'
            f'[include]\n\tpath = included\n[remote "{CANARY} x"]\n\turl = https://h/a\n'
            f'[remote "origin"]\n\turl = https://{CANARY}@h/a.git\n'
            f'[url "https://{CANARY}@h/"]\n\tinsteadOf = git@h:\n'
        )
    put(root, {".gitmodules": f'[submodule "i"]\n\tpath = i\n\turl = https://{CANARY}@h/b\n'})
    put(root, {"work/.git": f"gitdir: /home/{CANARY}/.git/worktrees/work\n"})

    snapshot = await snapshot_of(root)

    assert snapshot.holds(CANARY) == []
    assert b"url = https://h/a.git" in snapshot.files[".git/config"]
    assert b"url = https://h/b" in snapshot.files[".git/modules/inner/config"]
    assert b"url = https://h/b" in snapshot.files[".gitmodules"]


async def test_the_command_line_says_what_stays_at_home(fanout, root: Path) -> None:  # noqa: F811
    put(root, {".env": CANARY, "tests/key.py": KEY, "code.py": "1"})

    said = await asyncio.to_thread(fanout, "submit", "x", "--workspace", str(root))
    listed = await asyncio.to_thread(fanout, "submit", "x", "--workspace", str(root), "--json")
    included = await asyncio.to_thread(
        fanout, "submit", "x", "--workspace", str(root), "--include", ".env", "--json"
    )
    wrong = await asyncio.to_thread(
        fanout, "submit", "x", "--workspace", str(root), "--include", "../x"
    )
    line = f'{{"description": "x", "workspace": "{root}", "include": ["tests/key.py"]}}'
    in_file = await asyncio.to_thread(fanout, "submit", "--file", "-", "--json", stdin=line)

    assert "not sent: .env" in said.err
    assert "not sent: tests/key.py (It contains a credential (private key))" in said.err
    assert "--include" in said.err
    assert {file["path"] for file in listed.json["left_at_home"]} == {".env", "tests/key.py"}
    assert [file["path"] for file in included.json["left_at_home"]] == ["tests/key.py"]
    assert [file["path"] for file in in_file.json["left_at_home"]] == [".env"]
    assert (wrong.code, "is not a file in" in wrong.err) == (2, True)


@pytest.mark.parametrize("command", ["echo 3 > code.py", "echo 3 > code.py; echo A=2 > .env"])
async def test_a_file_that_stayed_at_home_survives_the_merge(root: Path, command: str) -> None:
    put(root, {".env": "A=1", "code.py": "1"})
    for arguments in (("init", "-q"), ("add", "-f", "."), ("commit", "-qm", "first")):
        await asyncio.to_thread(git, root, *arguments)
    workspace, blobs = Workspace(root), BlobStore(str(root.parent / "blobs"))
    blob_id = await workspace.snapshot(blobs)
    limits = Limits(
        timeout_seconds=60, cpus=1, memory_bytes=2**30, pids=50, disk_bytes=2**30, network="none"
    )
    spec = SandboxSpec(
        job_id=new_job_id(), attempt=1, image="none", limits=limits, snapshot=blob_id
    )
    provider = await asyncio.to_thread(LocalProvider, blobs.fetch, root.parent / "jobs", "secrets")
    async with provider.open(spec) as sandbox:
        await sandbox.run(Command(argv=command))
        with await sandbox.changes() as stream, ExitStack() as stack:
            bundle = await asyncio.to_thread(stack.enter_context, ChangeBundle.open(stream))
            report = await merge(workspace, bundle)
    await provider.discard(spec.job_id)
    await provider.close()

    assert [merged.path for merged in report.applied] == ["code.py"]
    not_merged = [entry.path for entry in (*report.conflicts, *report.held_back)]
    assert not_merged == [".env"] * (".env" in command)
    assert (root / ".env").read_text() == "A=1"


async def test_the_command_line_says_what_git_cannot_do_and_what_is_left_out(
    fanout,  # noqa: F811
    root: Path,
) -> None:
    put(root, {"a": "1", ".git": "gitdir: /nowhere\n"})
    os.mkfifo(root / "pipe")

    said = await asyncio.to_thread(fanout, "submit", "x", "--workspace", str(root))
    listed = await asyncio.to_thread(fanout, "submit", "x", "--workspace", str(root), "--json")

    assert "Git does not work in" in said.err
    assert "left out: pipe" in said.err
    assert [str(root) in limit for limit in listed.json["limits"]] == [True]
    assert [file["path"] for file in listed.json["left_out"]] == ["pipe"]
