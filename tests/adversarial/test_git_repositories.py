"""A hostile repository as the workspace: none of the programs that it names is started.

Each trap is one of Git's ways to run a program or to lead it elsewhere. All doors that look at a
person's folder are opened on each; a program that was started would have left the canary.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from fanout.orchestrator.cli.checks import doctor_checks
from fanout.orchestrator.git.process import GitFailed, run_git
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.repositories import repository
from fanout.orchestrator.workspace.repositories.repository import is_clean_checkout
from fanout.orchestrator.workspace.workspace import Workspace, WorkspaceUnusable
from tests.architecture.sources import package_sources
from tests.bundles import BundleBuilder
from tests.integration.cli.conftest import (  # noqa: F401
    fanout,
    ledger_url,
    private_redis,
    stand_in,
)
from tests.repositories import git

OLD, NEW = b"one\ntwo\nthree\nfour\nfive\n", b"ONE\ntwo\nthree\nfour\nfive\n"
OURS = b"one\ntwo\nthree\nfour\nFIVE\n"


class Trap:
    """A repository, and a program that leaves a canary when it is started."""

    def __init__(self, base: Path) -> None:
        base.mkdir(exist_ok=True)
        self.base = base
        self.root = base / "root"
        self.canary = base / "canary"
        self.program = base / "program"
        self.program.write_text(f"#!/bin/sh\necho sprung >> '{self.canary}'\ncat\n")
        self.program.chmod(0o755)
        self.root.mkdir()
        (self.root / "a.txt").write_bytes(OLD)
        (self.root / "sub").mkdir()
        (self.root / "sub/b.txt").write_bytes(OLD)
        (self.root / "rest").mkdir()
        (self.root / "rest/c.txt").write_bytes(OLD)
        (self.root / ".gitignore").write_text("*.secret\n")
        (self.root / "own.secret").write_text("ignored")
        git(self.root, "init", "-q", "-b", "main")
        git(self.root, "add", ".")
        git(self.root, "commit", "-q", "-m", "first")
        (self.root / "a.txt").write_bytes(OURS)

    def set(self, name: str, value: str) -> None:
        git(self.root, "config", "--add", name, value)

    def attribute(self, text: str) -> None:
        (self.root / ".gitattributes").write_text(f"{text}\n")
        (self.root / ".git/info").mkdir(exist_ok=True)
        (self.root / ".git/info/attributes").write_text(f"{text}\n")


def partial_clone(trap: Trap) -> None:
    lost = git(trap.root, "rev-parse", "HEAD:a.txt").strip()
    (trap.root / ".git/objects" / lost[:2] / lost[2:]).unlink()
    trap.set("core.repositoryformatversion", "1")
    trap.set("extensions.partialClone", "evil")
    trap.set("remote.evil.url", str(trap.root))
    trap.set("remote.evil.uploadpack", str(trap.program))
    trap.set("remote.evil.promisor", "true")


def clean_filter(trap: Trap) -> None:
    trap.attribute("* filter=evil")
    trap.set("filter.evil.clean", str(trap.program))
    trap.set("filter.evil.smudge", str(trap.program))


def process_filter(trap: Trap) -> None:
    trap.attribute("* filter=evil")
    trap.set("filter.evil.process", str(trap.program))
    trap.set("filter.evil.required", "true")


def file_system_monitor(trap: Trap) -> None:
    trap.set("core.fsmonitor", str(trap.program))


def hooks(trap: Trap) -> None:
    for name in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman"):
        target = trap.root / ".git/hooks" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(trap.program, target)


def hooks_path(trap: Trap) -> None:
    (trap.root / "hooks").mkdir()
    shutil.copy(trap.program, trap.root / "hooks/post-index-change")
    trap.set("core.hooksPath", "hooks")


def setting(name: str, *, more: Callable[[Trap], None] = lambda _: None) -> Callable[[Trap], None]:
    def plant(trap: Trap) -> None:
        trap.set(name, str(trap.program))
        more(trap)

    return plant


def included_configuration(trap: Trap) -> None:
    (trap.base / "more").write_text(f"[core]\n\tfsmonitor = {trap.program}\n")
    trap.set("include.path", str(trap.base / "more"))
    trap.set(f"includeIf.gitdir:{trap.root}/.path", str(trap.base / "more"))


def cyclic_configuration(trap: Trap) -> None:
    file_system_monitor(trap)
    trap.set("include.path", "config")


def work_tree_configuration(trap: Trap) -> None:
    trap.set("extensions.worktreeConfig", "true")
    (trap.root / ".git/config.worktree").write_text(f"[core]\n\tfsmonitor = {trap.program}\n")


def submodule(trap: Trap) -> None:
    other = trap.base / "other"
    shutil.copytree(trap.root, other)
    git(trap.root, "submodule", "--quiet", "add", str(other), "inner")
    git(trap.root / "inner", "config", "core.fsmonitor", str(trap.program))
    (trap.root / "inner/.gitattributes").write_text("* filter=evil\n")
    git(trap.root / "inner", "config", "filter.evil.clean", str(trap.program))
    (trap.root / "inner/a.txt").write_bytes(NEW)


def nested_repository(trap: Trap) -> None:
    inner = trap.root / "nested"
    shutil.copytree(trap.root, trap.base / "copy")
    (trap.base / "copy").rename(inner)
    git(inner, "config", "core.fsmonitor", str(trap.program))


def bare_repository(trap: Trap) -> None:
    git(trap.base, "clone", "-q", "--bare", str(trap.root), str(trap.root / "bare"))
    git(trap.root / "bare", "config", "core.fsmonitor", str(trap.program))
    git(trap.root / "bare", "config", "core.worktree", str(trap.root))


def pointer_elsewhere(trap: Trap) -> None:
    file_system_monitor(trap)
    (trap.root / ".git").rename(trap.base / "elsewhere")
    (trap.root / ".git").write_text(f"gitdir: {trap.base / 'elsewhere'}\n")


def work_tree_elsewhere(trap: Trap) -> None:
    file_system_monitor(trap)
    trap.set("core.worktree", "/")


def program_in_the_folder(trap: Trap) -> None:
    shutil.copy(trap.program, trap.root / "git")


def alternates(trap: Trap) -> None:
    (trap.root / ".git/objects/info").mkdir(exist_ok=True)
    (trap.root / ".git/objects/info/alternates").write_text(f"{trap.base}/nowhere\n")
    trap.set("core.alternateRefsCommand", str(trap.program))


def split_index(trap: Trap) -> None:
    git(trap.root, "update-index", "--split-index")
    file_system_monitor(trap)


def index_of_version_4(trap: Trap) -> None:
    git(trap.root, "update-index", "--index-version", "4")
    file_system_monitor(trap)


def sparse_index(trap: Trap) -> None:
    git(trap.root, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(trap.root, "reset", "-q", "--hard")
    git(trap.root, "sparse-checkout", "set", "sub")
    assert not (trap.root / "rest").exists()
    (trap.root / "a.txt").write_bytes(OURS)
    file_system_monitor(trap)


def shared_with_everybody(trap: Trap) -> None:
    file_system_monitor(trap)
    if os.geteuid() == 0:
        for path in (trap.root, *trap.root.rglob("*")):
            os.chown(path, 1234, 1234, follow_symlinks=False)


TRAPS: dict[str, Callable[[Trap], None]] = {
    "a partial clone's uploadpack": partial_clone,
    "a clean filter": clean_filter,
    "a process filter": process_filter,
    "a file system monitor": file_system_monitor,
    "hooks": hooks,
    "core.hooksPath": hooks_path,
    "core.sshCommand": setting("core.sshCommand", more=partial_clone),
    "core.gitProxy": setting("core.gitProxy", more=partial_clone),
    "diff.external": setting("diff.external"),
    "a text converter": setting("diff.evil.textconv", more=lambda t: t.attribute("* diff=evil")),
    "a diff driver": setting("diff.evil.command", more=lambda t: t.attribute("* diff=evil")),
    "a merge driver": setting("merge.evil.driver", more=lambda t: t.attribute("* merge=evil")),
    "core.pager": setting("core.pager"),
    "core.editor": setting("core.editor"),
    "core.askPass": setting("core.askPass", more=partial_clone),
    "a credential helper": setting("credential.helper", more=partial_clone),
    "an alias": setting("alias.ls-files"),
    "gpg.program": setting("gpg.program", more=lambda t: t.set("log.showSignature", "true")),
    "an included configuration": included_configuration,
    "a configuration that includes itself": cyclic_configuration,
    "a work tree's configuration": work_tree_configuration,
    "a submodule's configuration": submodule,
    "a nested repository": nested_repository,
    "a bare repository in a folder": bare_repository,
    "a .git file that leads elsewhere": pointer_elsewhere,
    "a work tree elsewhere": work_tree_elsewhere,
    "a program named git": program_in_the_folder,
    "alternates": alternates,
    "a split index": split_index,
    "an index of version 4": index_of_version_4,
    "a sparse index": sparse_index,
    "another owner": shared_with_everybody,
}


async def open_all_doors(trap: Trap) -> set[str]:
    """Do everything that fanout does with a folder; return the paths of its snapshot."""
    workspace, blobs = Workspace(trap.root), BlobStore(str(trap.base / "blobs"))
    archive = await blobs.fetch(await workspace.snapshot(blobs))
    await Workspace(trap.root / "sub").snapshot(blobs)
    await asyncio.to_thread(is_clean_checkout, trap.root)
    bundle = BundleBuilder().edit("a.txt", OLD, NEW).edit("sub/b.txt", OLD, NEW)
    for check in (True, False):
        with ExitStack() as stack:
            opened = await asyncio.to_thread(stack.enter_context, ChangeBundle.open(bundle.build()))
            assert (await merge(workspace, opened, check=check)).complete
    assert (trap.root / "a.txt").read_bytes() == b"ONE\ntwo\nthree\nfour\nFIVE\n"
    listing = await asyncio.to_thread(
        subprocess.run, ["tar", "tf", str(archive)], check=True, capture_output=True
    )
    return set(listing.stdout.decode().splitlines())


@pytest.mark.parametrize("plant", TRAPS.values(), ids=TRAPS)
async def test_no_program_of_a_repository_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Trap], None]
) -> None:
    trap = await asyncio.to_thread(Trap, tmp_path)
    await asyncio.to_thread(plant, trap)
    trap.canary.unlink(missing_ok=True)  # planting it used Git
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(trap.root)

    snapshot = await open_all_doors(trap)

    assert not trap.canary.exists()
    assert "a.txt" in snapshot
    assert "own.secret" not in snapshot


async def test_no_command_starts_a_program_of_a_repository(
    fanout,  # noqa: F811
    stand_in,  # noqa: F811
    tmp_path: Path,
) -> None:
    trap = await asyncio.to_thread(Trap, tmp_path / "hostile")
    programs = ("core.pager", "core.editor", "diff.external", "alias.status", "alias.ls-files")
    for plant in (clean_filter, hooks, file_system_monitor, *map(setting, programs)):
        await asyncio.to_thread(plant, trap)
    trap.canary.unlink(missing_ok=True)
    bundle = BundleBuilder().edit("a.txt", OLD, NEW).build().getvalue()
    with ExitStack() as stack:
        opened = await asyncio.to_thread(stack.enter_context, ChangeBundle.open(io.BytesIO(bundle)))
        summary = opened.changes.summary()

    def command(*arguments: str) -> str:
        ended = fanout(*arguments)
        assert ended.code == 0, ended.err
        return ended.out

    job_id = await asyncio.to_thread(command, "submit", "x", "--workspace", str(trap.root))
    changes = await stand_in.blobs.put(bundle)
    await stand_in.finish(job_id.strip(), changes=changes, files_modified=summary)
    into = ("--into", str(trap.root))
    await asyncio.to_thread(command, "diff", job_id.strip())
    await asyncio.to_thread(command, "apply", job_id.strip(), *into, "--check")
    await asyncio.to_thread(command, "apply", job_id.strip(), *into)

    assert (trap.root / "a.txt").read_bytes().startswith(b"ONE")
    assert not trap.canary.exists()


@pytest.mark.parametrize("plant", [clean_filter, file_system_monitor])
def test_the_traps_are_live(tmp_path: Path, plant: Callable[[Trap], None]) -> None:
    trap = Trap(tmp_path)
    plant(trap)
    trap.canary.unlink(missing_ok=True)

    git(trap.root, "status")

    assert trap.canary.exists()


def test_nothing_of_the_environment_leads_git_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap(tmp_path)
    for name in ("GIT_EXTERNAL_DIFF", "GIT_SSH", "GIT_PAGER", "GIT_ASKPASS", "GIT_PROXY_COMMAND"):
        monkeypatch.setenv(name, str(trap.program))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(trap.program))

    asyncio.run(open_all_doors(trap))

    assert not trap.canary.exists()


@pytest.mark.parametrize("content", [b"", b"DIRC broken", b"\xa5" * 4096])
async def test_a_corrupt_index_is_told_or_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    trap = await asyncio.to_thread(Trap, tmp_path)
    (trap.root / ".git/index").write_bytes(content)
    blobs = BlobStore(str(tmp_path / "blobs"))
    if content:
        with pytest.raises(WorkspaceUnusable, match="Git cannot list"):
            await Workspace(trap.root).snapshot(blobs)
    else:
        await Workspace(trap.root).snapshot(blobs)
    assert not await asyncio.to_thread(is_clean_checkout, trap.root)


@pytest.mark.parametrize("name", ["config", "info/exclude", "index"])
async def test_a_pipe_in_a_repository_stops_nobody(tmp_path: Path, name: str) -> None:
    trap = await asyncio.to_thread(Trap, tmp_path)
    (trap.root / ".git" / name).unlink(missing_ok=True)
    (trap.root / ".git/info").mkdir(exist_ok=True)
    os.mkfifo(trap.root / ".git" / name)

    with pytest.raises(WorkspaceUnusable, match="is not a regular file"):
        await Workspace(trap.root).snapshot(BlobStore(str(tmp_path / "blobs")))


async def test_a_huge_configuration_is_refused(tmp_path: Path) -> None:
    trap = await asyncio.to_thread(Trap, tmp_path)
    with (trap.root / ".git/config").open("ab") as config:
        config.truncate(3 * 1024**3)  # sparse

    with pytest.raises(WorkspaceUnusable, match="more than"):
        await Workspace(trap.root).snapshot(BlobStore(str(tmp_path / "blobs")))


def gits_in(folder: Path) -> list[int]:
    """Return the Git processes that work in a folder."""
    return [
        one.pid
        for one in psutil.process_iter(["name", "cwd"])
        if one.info["name"] == "git" and str(one.info["cwd"]).startswith(str(folder))
    ]


async def test_git_that_hangs_is_killed_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = await asyncio.to_thread(Trap, tmp_path)
    os.mkfifo(trap.root / "sub/.gitattributes")
    (trap.root / "sub/.gitignore").unlink(missing_ok=True)
    os.mkfifo(trap.root / "sub/.gitignore")
    monkeypatch.setattr(repository, "LISTING_SECONDS", 0.5)

    with pytest.raises(WorkspaceUnusable, match="took too long"):
        await Workspace(trap.root).snapshot(BlobStore(str(tmp_path / "blobs")))

    assert await asyncio.to_thread(gits_in, trap.root) == []


def test_git_that_writes_without_end_is_killed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\n" * 1_000_000)

    with pytest.raises(GitFailed, match="wrote too much"):
        run_git(
            ["hash-object", "--literally", "--stdin-paths"],
            folder=tmp_path,
            stdin=b"x\n" * 9,
            max_output_bytes=40,
        )


def test_only_one_module_starts_git() -> None:
    """Nowhere else is a list that begins with `git`, or a call with it as its first word."""
    inside = ("workers/sandbox/inside/", "orchestrator/git/process.py")
    found = {
        name
        for name, text in package_sources()
        if not name.startswith(inside)
        for node in ast.walk(ast.parse(text))
        if any(map(_is_git_program, _first_words(node)))
    }
    assert found == {
        "orchestrator/cli/checks/doctor_checks.py",  # looks whether it is installed
        "workers/extras/remote_agents/messages.py",  # applies a patch in the job's sandbox
        "workers/attempt/changes.py",  # looks in the job's sandbox
        "workers/sandbox/merge_target.py",  # as above
        "workers/extras/images.py",  # says whether an image has it
    }
    assert 'which("git")' in inspect.getsource(doctor_checks)


def _first_words(node: ast.AST) -> list[str]:
    """The first word of a list, or of each of a call's arguments."""
    values: list[ast.expr] = []
    if isinstance(node, ast.List | ast.Tuple):
        values = node.elts[:1]
    elif isinstance(node, ast.Call):
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return [
        word
        for value in values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
        for word in value.value.split()[:1]
    ]


def _is_git_program(word: str) -> bool:
    return word == "git" or word.endswith("/git")
