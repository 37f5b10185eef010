"""A directory of this machine with this machine's shell.

The file tools are confined to the directory. The shell is not a sandbox: a command can do whatever
this process's user can do.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shutil
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from ...path_text import os_path
from ...portable.command_output import OutputFiles
from ...portable.commands import find_shell
from . import processes
from .directory import DirectoryBackend
from .protocol import Execution, OutputSink

INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
)
"""The environment variables that commands inherit; any other may be a key."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The path for a process that was started without PATH."""

OUTPUT_ROOT = "/var/tmp"  # noqa: S108 - the folder in it has a name that nobody can guess
"""Where the whole outputs of commands are kept while the backend exists: unlike /tmp, a disk on
every system."""

_OUTPUT_PREFIX = "fanout-output-"


def inherited_environment() -> dict[str, str]:
    """Return the environment of a command that is given no more variables."""
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return {"PATH": DEFAULT_PATH, **inherited}


class LocalShellBackend(DirectoryBackend):
    """The files below `root`, under their real paths, and a shell that starts there.

    Args:
        root: An existing directory.
        env: More variables for the commands.
    """

    def __init__(self, root: Path | str, *, env: Mapping[str, str] | None = None) -> None:
        outputs = f"{OUTPUT_ROOT}/{_OUTPUT_PREFIX}{os.getpid()}-{uuid4().hex}"
        root = Path(root).absolute()
        super().__init__(root, mount=posixpath.normpath(root), also={outputs: Path(outputs)})
        self._env = dict(env or {})
        self._outputs = Path(outputs)
        self._output_files = OutputFiles(outputs, self._create_output, self._delete)

    @property
    def output_folder(self) -> str:
        """Where the whole outputs of commands are, once there is one."""
        return str(self._outputs)

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """See `Shell.execute`."""
        folder = Path(os_path(self.search_root))
        return await self.execute_in_folder(
            folder, command, timeout_seconds, max_output_bytes, on_output
        )

    async def execute_in_folder(
        self,
        folder: Path,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
        *,
        marker: str = "",
    ) -> Execution:
        """As `execute`, but the command starts in another folder, such as a copy of the files.

        What it leaves running can be stopped by `marker` (`processes.stop_leftovers`).
        """
        environment = {**inherited_environment(), **self._env}
        shell = await asyncio.to_thread(find_shell, environment["PATH"])
        launch = processes.Launch(
            argv=[*shell, command],
            env=environment,
            cwd=str(folder),
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
            output_files=self._output_files,
            marker=marker + uuid4().hex,
        )
        return await processes.run(launch, on_output)

    def _create_output(self, path: str) -> int:
        with suppress(FileExistsError):
            self._outputs.mkdir(mode=0o700)
            _remove_leftovers()
            weakref.finalize(self, shutil.rmtree, self._outputs, ignore_errors=True)
        return self._create(path)


def _remove_leftovers() -> None:
    """Remove the outputs of processes of this user that were killed."""
    for folder in Path(OUTPUT_ROOT).glob(f"{_OUTPUT_PREFIX}*-*"):
        pid = folder.name.removeprefix(_OUTPUT_PREFIX).partition("-")[0]
        with suppress(OSError):
            is_ours = folder.lstat().st_uid == os.geteuid()
            if is_ours and pid.isdigit() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
