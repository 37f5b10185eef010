"""A directory of this machine as the whole file system that an agent sees."""

from __future__ import annotations

from pathlib import Path

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend


class FilesystemBackend(DirectoryBackend):
    """The files below a directory, which the agent sees as `/` and cannot leave.

    Args:
        root_dir: An existing directory; a relative one is below the working directory of now.

    Raises:
        ValueError: There is no such directory.
    """

    def __init__(self, root_dir: Path | str = ".") -> None:
        root = Path(root_dir).absolute()
        if not root.is_dir():
            raise ValueError(f"root_dir must be an existing directory; {root} is not one.")
        super().__init__(root, mount="/")
