"""The only module that starts Git on a person's machine.

A repository's configuration names programs: filters, hooks, helpers, a pager, a file system
monitor. So Git never reads the configuration of another repository than a private one: it runs
without a repository, or with a private one (`orchestrator/workspace/repositories`), and with
settings that disable everything that could start a program or a connection.
"""

from __future__ import annotations

import os
import select
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from ..bounded_process import ProcessBounds, kill_group

NO_REPOSITORY = Path(os.devnull)
"""The value of Git's directory for commands that need no repository, wherever they run."""

DEFAULT_SECONDS = 60.0
"""The time for a command on a few files; a slow disk needs a second."""

MAX_OUTPUT_BYTES = 256 * 1024**2
"""The largest output: a million paths of 256 bytes."""

MAX_MEMORY_BYTES = 4 * 1024**3
"""The memory of one process of Git. It reads objects of up to 512 MiB as a whole, of which it may
need three, and packs a person's large repository with several threads. An object of a few bytes may
claim more."""

_CPU_SHARE = 2
"""The processor time relative to the elapsed time: Git has threads."""

_READ_BYTES = 64 * 1024
"""The size of a pipe."""

_WATCH_SECONDS = 0.5
"""How often a caller is asked whether Git is still to run."""

_SETTINGS = (
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.askPass=false",
    "core.editor=false",
    "core.sshCommand=false",
    "core.alternateRefsCommand=false",
    "credential.helper=",
    "protocol.allow=never",
    "submodule.recurse=false",
    "commit.gpgSign=false",
    "gpg.program=false",
    "gc.auto=0",
    "maintenance.auto=false",
    # Otherwise a pack is mapped a GiB at a time, which would be most of its memory limit.
    "core.packedGitWindowSize=64m",
    "core.packedGitLimit=512m",
)

_ENVIRONMENT = {
    "LC_ALL": "C",
    "HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",  # since Git 2.44; before, a private repository has no promisor
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_EDITOR": "false",
    "GIT_PAGER": "cat",
}


class GitFailed(RuntimeError):
    """Git is not installed, failed, took too long or wrote too much."""


def run_git(
    arguments: Sequence[str],
    *,
    folder: Path,
    git_dir: Path = NO_REPOSITORY,
    work_tree: Path | None = None,
    objects: Path | None = None,
    borrowed: Path | None = None,
    settings: Sequence[str] = (),
    stdin: bytes | IO[bytes] = b"",
    accepted: Collection[int] = (0,),
    seconds: float = DEFAULT_SECONDS,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    max_file_bytes: int | None = None,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
    protocols: str = "",
    watch: Callable[[], None] = lambda: None,
) -> tuple[int, bytes]:
    """Run Git, and return its exit code and what it wrote to its standard output; blocks.

    Git gets only the absolute folders of `PATH` from this process's environment.

    Args:
        arguments: The command and its arguments.
        folder: Where it runs.
        git_dir: A private repository, never one with another author's configuration.
        work_tree: The folder of the repository's files.
        objects: A folder of objects to read instead of the repository's own.
        borrowed: A further folder of objects to read, with those that it borrows itself.
        settings: Configuration, as `key=value`.
        stdin: What it reads; a file is closed.
        accepted: The exit codes that are not a failure.
        seconds: The time after which it is killed with all its processes.
        max_output_bytes: The amount of output after which it is killed as well.
        max_file_bytes: The largest file that it writes; None: no limit.
        max_memory_bytes: The largest address space.
        protocols: The protocols of allowed connections, with colons between them.
        watch: Called twice a second; when it raises GitFailed, Git is killed.

    Raises:
        GitFailed: Git is not installed, ended with another code, or was killed.
    """
    places = {"GIT_DIR": git_dir, "GIT_WORK_TREE": work_tree, "GIT_OBJECT_DIRECTORY": objects}
    environment = _ENVIRONMENT | {"GIT_ALLOW_PROTOCOL": protocols}
    environment |= {key: str(path) for key, path in places.items() if path}
    if borrowed is not None:
        environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(borrowed)
    options = [part for setting in (*_SETTINGS, *settings) for part in ("-c", setting)]
    bounds = ProcessBounds(
        memory_bytes=max_memory_bytes, cpu_seconds=_CPU_SHARE * seconds, file_bytes=max_file_bytes
    )
    with _readable(stdin) as given:
        process = _start(["--no-pager", *options, *arguments], folder, environment, given, bounds)
    try:
        output, errors = _read(process, time.monotonic() + seconds, max_output_bytes, watch)
    except GitFailed as failure:
        raise GitFailed(f"git {arguments[0]} {failure}") from None
    finally:
        kill_group(process)
    if process.returncode not in accepted:
        reason = os.fsdecode(errors).strip().partition("\n")[0][:300]
        raise GitFailed(reason or f"git {arguments[0]} ended with code {process.returncode}")
    return process.returncode, output


def _quoted(path: Path) -> str:
    """Return a path as an entry of a list with colons between its entries."""
    text = str(path)
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(character, escaped)
    return f'"{text}"'


def _readable(content: bytes | IO[bytes]) -> IO[bytes]:
    """Return a stream of a content: a pipe if the content fits into it, which needs no file."""
    if not isinstance(content, bytes):
        return content
    if len(content) > select.PIPE_BUF:
        given = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        given.write(content)
        given.seek(0)
        return given
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return os.fdopen(reading, "rb")


def _start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: IO[bytes],
    bounds: ProcessBounds,
) -> subprocess.Popen[bytes]:
    # With a relative folder, the folder in which Git runs could provide the program.
    path = os.pathsep.join(entry for entry in os.get_exec_path() if Path(entry).is_absolute())
    program = shutil.which("git", path=path)
    if program is None:
        raise GitFailed("git is not installed")
    try:
        return subprocess.Popen(  # noqa: S603 - no shell
            bounds.command([program, *arguments]),
            cwd=folder,
            env={**environment, "PATH": path},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise GitFailed(f"git could not be started: {error.strerror}") from error


def _read(
    process: subprocess.Popen[bytes], deadline: float, max_bytes: int, watch: Callable[[], None]
) -> tuple[bytes, bytes]:
    """Return what a process writes until it ends: standard output and errors."""
    assert process.stdout is not None and process.stderr is not None  # noqa: PT018, S101 - both are pipes
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ, output)
        waiting.register(process.stderr, selectors.EVENT_READ, errors)
        while waiting.get_map():
            remaining = max(0.0, deadline - time.monotonic())
            ready = waiting.select(min(remaining, _WATCH_SECONDS))
            watch()
            if not ready and time.monotonic() >= deadline:
                raise GitFailed("took too long")
            for key, _ in ready:
                data = os.read(key.fd, _READ_BYTES)
                key.data.extend(data)
                if not data:
                    waiting.unregister(key.fileobj)
            if len(output) + len(errors) > max_bytes:
                raise GitFailed("wrote too much")
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise GitFailed("took too long") from None
    return bytes(output), bytes(errors)
