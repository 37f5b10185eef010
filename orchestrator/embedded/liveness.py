"""Whether the services of a state folder run.

Apart from `services`, which starts them: every command looks, hardly any starts something.
"""

from __future__ import annotations

from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.embedded.child_process import ChildProcess
from fanout.orchestrator.jobs.store.connection import answers


def was_killed(folder: StateFolder) -> bool:
    """Return whether Redis or the worker of a folder ended without having been stopped."""
    if not (folder.has_record and (folder.path / "redis" / "appendonlydir").is_dir()):
        return False
    record = folder.read_record()
    if record is None or not answers(record.redis_url):
        return True
    return record.kept and not worker_process(folder).is_alive


def worker_process(folder: StateFolder) -> ChildProcess:
    """Return the worker of a state folder, whether it runs or not."""
    return ChildProcess(folder.path, "worker")
