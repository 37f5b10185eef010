"""The steward: stores the files of all jobs of one installation on one Docker engine.

It runs in its own container, one for each worker process, as root over one volume and with no
network. Workers reach it only through its attach stream, so they need neither mounts nor root, and
a remote engine works like a local one. Standard library only. The stewards of one installation
share the volume; `store` has its layout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fanout.workers.sandbox.inside import archives, disks, resident
from fanout.workers.sandbox.inside.collection import jail
from fanout.workers.sandbox.inside.files import begun_upload, drop_upload
from fanout.workers.sandbox.inside.loop import Refused
from fanout.workers.sandbox.inside.snapshots import AGENT_ID
from fanout.workers.sandbox.inside.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.workers.sandbox.inside.collection.fork_server import ForkServer
    from fanout.workers.sandbox.inside.loop import Context, Reply, SlowOperation


def _replying(key: str, method: Callable[..., object]) -> SlowOperation:
    """Return an operation that replies with what a method of the store returns."""

    def reply(_context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        try:
            return {key: method(**arguments)}, b""
        except disks.DiskFailed as error:
            raise Refused("DiskFailed", str(error)) from error

    return reply


def _operations(store: Store, collectors: ForkServer) -> dict[str, SlowOperation]:
    """Return the operations that `workers.sandbox.docker.steward_client` calls."""

    def unpack(_context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        archive = archives.Arriving(begun_upload(arguments["upload"]), arguments["bytes"])
        try:
            store.unpack(arguments["names"], archive, arguments["bytes"])
            archive.wait()
        except archives.UnusableArchive as error:
            raise Refused("UnusableArchive", str(error)) from error
        finally:
            archive.close()
            drop_upload(arguments["upload"])
        return {}, b""

    def bundle(context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        before, after, marked = store.before_and_after(arguments["job"])
        try:
            jail.collect(
                before, after, marked=marked, agent_id=AGENT_ID, server=collectors,
                context=context,
            )  # fmt: skip
        except jail.CollectionFailed as error:
            raise Refused(type(error).__name__, str(error)) from error
        except BrokenPipeError:
            os._exit(1)  # without the fork server no collection succeeds; the worker starts another
        return {}, b""

    return {
        "prepare": _replying("prepared", store.prepare),
        "check_disks": _replying("shared_user", store.check_disks),
        "check_renaming": _replying("no_renaming", store.check_renaming),
        "free": _replying("bytes", store.free),
        "unpack": unpack,
        "bundle": bundle,
        "measure": _replying("bytes", store.measure),
        "jobs": _replying("jobs", store.jobs),
        "delete": _replying("deleted", store.delete),
        "adopt": _replying("files", store.adopt),
        "adopted": _replying("adopted", store.adopted),
        "warm": _replying("warm", store.warm),
    }


def main() -> NoReturn:
    """Serve one worker.

    The program's arguments: the volume's folder, the size of the cache, the disk's reserve, the
    resident's code and its id.
    """
    collectors = jail.collectors()
    root, cache_bytes, reserve_bytes, code, code_id = sys.argv[1:]
    store = Store(Path(root), int(cache_bytes), int(reserve_bytes))
    store.set_up(Path(code), code_id)
    resident.SLOW_OPERATIONS.update(_operations(store, collectors))
    resident.main(reap_orphans=False)
