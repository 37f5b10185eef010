"""Signatures of the queue's messages, for a Redis whose queue others may write to.

A message names a job, and the ledger decides whether it may run now. So a forged message can do no
more than have a dispatched job claimed by another worker than its sender chose; with a key that
senders and workers share it cannot even do that.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

HEADER = "fanout_signature"
"""The header of a message that holds its signature."""


class MessageSigner:
    """Signs messages with the first key, and accepts those signed with any of them.

    So a key is replaced in three steps: add the new one at the end everywhere, move it to the
    front everywhere, remove the old one.

    Args:
        keys: The secrets; without any, messages are neither signed nor checked.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]
        self.refused = 0
        """The number of messages that were not accepted."""

    def headers(self, message_id: str) -> dict[str, str]:
        """Return the headers of a message.

        Args:
            message_id: Its id: that of the job, and the number of the job's dispatch.
        """
        return {HEADER: _signature(self._keys[0], message_id)} if self._keys else {}

    def accepts(self, message_id: str, job_id: str, signature: object) -> bool:
        """Return whether a message may be obeyed.

        Args:
            message_id: Its id, which the signature has to match.
            job_id: The job that it names, which has to be that of its id.
            signature: Its header, of any type: it comes from outside.
        """
        if not self._keys or self._is_valid(message_id, job_id, signature):
            return True
        self.refused += 1
        return False

    def _is_valid(self, message_id: str, job_id: str, signature: object) -> bool:
        if not isinstance(signature, str) or message_id.rpartition(".")[0] != job_id:
            return False
        given = signature.encode(errors="replace")
        return any(
            hmac.compare_digest(_signature(key, message_id).encode(), given) for key in self._keys
        )


def _signature(key: bytes, message_id: str) -> str:
    return hmac.new(key, b"fanout.run_job\n" + message_id.encode(), hashlib.sha256).hexdigest()
