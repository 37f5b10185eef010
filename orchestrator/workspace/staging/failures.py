"""Merges that could not be written."""

from __future__ import annotations

import errno

from fanout.orchestrator.jobs.failures import JobFailure

_STORAGE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ENOMEM, errno.EMFILE}
)
"""What concerns the disk or the process. Any other error is of one file only."""


class MergeUndone(JobFailure):
    """Nothing was merged, because the new contents could not be written."""


class MergeUnfinished(JobFailure):
    """A part of a merge is in place, and the rest waits for the next merge or snapshot."""


class StorageFailed(Exception):
    """The disk is full or failed; the text says how."""


def raise_if_storage(error: BaseException) -> None:
    """Raise StorageFailed for an error that is not of one file only."""
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        raise StorageFailed(error.strerror or str(error)) from error
