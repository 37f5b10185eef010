"""A job's files, as the steward has prepared them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job's files, ready to be mounted."""

    files_id: str
    """See `Sandbox.files_id`."""
    adopted: str
    """Under which id they were prepared ahead; empty when they were made for the job."""
    options: dict[str, str]
    """The mount options of the workspace."""
    output_options: dict[str, str]
    """The mount options of the folder with the outputs of commands."""
    user: int
    """Whose they are, and so whom the sandbox's processes must be."""
    has_disk: bool
    """The files are on a disk of the job's own, whose size the kernel keeps."""
