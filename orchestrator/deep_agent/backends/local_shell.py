"""A directory of this machine with this machine's shell.

The file tools are confined to the directory. The shell is not a sandbox: a command can do whatever
this process's user can do.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path

from fanout.orchestrator.deep_agent.backends import processes
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.backends.protocol import Execution, OutputSink

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
"""For a process that was started without PATH."""


class LocalShellBackend(DirectoryBackend):
    """The files below `root`, under their real paths, and a shell that starts there.

    Args:
        root: An existing directory.
        env: More variables for the commands.
    """

    def __init__(self, root: Path | str, *, env: Mapping[str, str] | None = None) -> None:
        root = Path(root).absolute()
        super().__init__(root, mount=posixpath.normpath(root))
        self._env = dict(env or {})

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """See `Shell.execute`."""
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        launch = processes.Launch(
            argv=["/bin/sh", "-c", command],
            env={"PATH": DEFAULT_PATH, **inherited, **self._env},
            cwd=self.search_root,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
        )
        return await processes.run(launch, on_output)
