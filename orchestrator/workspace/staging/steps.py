"""The steps that put a staged merge in place, and their execution, which can be repeated.

New contents lie beside their targets, so a step renames or removes, which needs no space. A step is
left out if its target is no longer what the merge saw.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from pydantic import Field

from fanout.orchestrator.jobs.spec import WireModel
from fanout.orchestrator.workspace.rooted import (
    ChangedMeanwhile,
    Identity,
    PathRefused,
    RootedFolder,
)
from fanout.orchestrator.workspace.staging.failures import raise_if_storage

STAGED_NAME = r"^\.fanout-[0-9a-f]{24}~$"
"""Names that change lists ignore, as they do every `.fanout-*~`."""

Left = dict[str, str | None]
"""Path of a change -> why it was not carried out; None: its target was changed meanwhile."""


Do = Literal["put", "mode", "remove", "remove_directory"]


class Step(WireModel):
    """One change of a folder."""

    do: Do
    path: str
    group: str
    """The path of the change that the step is part of: if one of its steps is left out, so are the
    later ones. A file that is moved is removed from its old path only when it is at the new one."""
    staged: str | None = Field(default=None, pattern=STAGED_NAME)
    """For `put`: the name of the new entry, beside the path."""
    expected: Identity | None = None
    """The target's identity when the merge was planned; None: it did not exist."""
    mode: int = Field(default=0, ge=0, le=0o777)


def carry_out(folder: RootedFolder, steps: Iterable[Step], *, again: bool = False) -> Left:
    """Carry out steps, and return the changes that were left out.

    Args:
        folder: The folder.
        steps: The steps, in order.
        again: They may have been carried out before, in part.

    Raises:
        StorageFailed: The disk failed; another execution may succeed.
    """
    left: Left = {}
    for step in steps:
        if step.group in left:
            continue
        try:
            _carry_out(folder, step)
        except FileNotFoundError:
            if not again:
                left[step.group] = None
        except ChangedMeanwhile:
            if not (again and step.do == "mode"):
                left[step.group] = None
        except (OSError, PathRefused) as error:
            raise_if_storage(error)
            left[step.group] = (isinstance(error, OSError) and error.strerror) or str(error)
    return left


def _carry_out(folder: RootedFolder, step: Step) -> None:
    if step.do == "put" and step.staged is not None:
        folder.move(step.staged, step.path, step.expected)
    elif step.do == "mode" and step.expected is not None:
        folder.set_mode(step.path, step.mode, step.expected)
    elif step.do == "remove" and step.expected is not None:
        folder.remove(step.path, step.expected)
    elif step.do == "remove_directory":
        with suppress(OSError):  # somebody has put a file into it
            folder.remove_directory(step.path)


def sync(folder: RootedFolder, steps: Iterable[Step]) -> None:
    """Wait until the steps are on the disk."""
    for directory in {posixpath.dirname(step.path) for step in steps}:
        with suppress(OSError, PathRefused):
            folder.sync(directory)
