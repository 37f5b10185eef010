"""The local provider's folders: unpacking and copying them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from fanout.workers.sandbox.errors import SnapshotUnusable
from fanout.workers.sandbox.inside import archives, snapshots
from fanout.workers.sandbox.layers import Element


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with its modes, times and links; shares blocks where the file system can.

    Raises:
        CalledProcessError: it could not be copied.
    """
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    if not any(source.iterdir()):  # a job without files is no reason to start a program
        part.mkdir()
        shutil.copystat(source, part)
        part.rename(target)
        return
    command = ["cp", "-a", "--reflink=auto", "--", str(source), str(part)]
    subprocess.run(  # noqa: S603 - our paths
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    part.rename(target)


def unpack_element(element: Element, archive: Path, target: Path, below: Path | None) -> None:
    """Unpack a snapshot or a layer into a folder with the whole tree, which appears when complete.

    An existing folder is kept.

    Args:
        element: what it is.
        archive: its archive.
        target: the folder.
        below: the folder of what a layer is put on, whose files are shared; None for a snapshot.

    Raises:
        SnapshotUnusable: see `archives.unpack` and `snapshots.merge_into`.
        OSError: the file system refused.
        CalledProcessError: what is below could not be copied.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name[:16]}-", dir=target.parent))
    try:
        tree, written = part / "tree", part / "written"
        written.mkdir()
        written.chmod(0o755)
        removed: list[str] = []
        archives.unpack(archive, written, _keep_owner, None if below is None else removed)
        if below is None:
            tree = written
        else:
            snapshots.copy_linked(below, tree)
            snapshots.merge_into(tree, written, removed, _keep_owner)
        tree.rename(target)
    except archives.UnusableArchive as error:
        raise SnapshotUnusable(f"The {element} cannot be used: {error}.") from error
    except OSError:
        if not target.exists():  # unless another thread was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _keep_owner(_path: str | Path) -> None:
    """Leave a file to this process's user."""
