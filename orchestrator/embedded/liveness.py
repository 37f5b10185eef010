"""Whether the services of a state folder run.

It is separate from `services`, which starts them, because every command checks, and hardly any
starts something.
"""

from __future__ import annotations

from ..client.state_folder import StateFolder
from ..jobs.store.connection import answers
from .child_process import ChildProcess


def was_killed(folder: StateFolder, pool: str = "") -> bool:
    """Return whether Redis or a worker of a folder ended without having been stopped.

    Args:
        folder: The folder.
        pool: The pool whose worker is in use; empty: the last used pool.
    """
    if not (folder.has_record and (folder.path / "redis" / "appendonlydir").is_dir()):
        return False
    record = folder.read_record()
    if record is None or not answers(record.redis_url):
        return True
    return record.kept and not worker_process(folder, pool or record.pool).is_alive


def worker_process(folder: StateFolder, pool: str) -> ChildProcess:
    """Return the worker of a pool, whether it runs or not."""
    return ChildProcess(folder.path, f"worker-{pool}" if pool else "worker")


def living_workers(folder: StateFolder) -> dict[str, ChildProcess]:
    """Return the running workers of a folder by pool; empty: that of a release without pools."""
    pools = [path.stem.partition("-")[2] for path in sorted(folder.path.glob("worker*.lock"))]
    found = {pool: worker_process(folder, pool) for pool in pools}
    return {pool: process for pool, process in found.items() if process.is_alive}
