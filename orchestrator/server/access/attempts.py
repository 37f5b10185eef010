"""Failed attempts to authenticate, by address: whoever guesses has to wait."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fanout.orchestrator.jobs.store.access.api_keys import fingerprint

MAX_ADDRESSES = 10_000
"""Remembered by one process, in some 2 MB; beyond, the one that failed longest ago is forgotten."""
MAX_GOOD_CREDENTIALS = 10_000
"""Remembered as fingerprints: they pass while their address, a proxy's perhaps, has to wait."""
IPV6_NETWORK_BITS = 64
"""What one household or machine is given: single addresses of it are free to change."""


class TooManyAttempts(Exception):
    """An address has presented too many wrong credentials.

    Args:
        retry_after_seconds: When it may try again.
    """

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("Too many wrong keys came from this address: wait, then try again.")
        self.retry_after_seconds = retry_after_seconds


@dataclass
class _Bucket:
    """What an address has left, as of a time."""

    left: float
    at: float


class FailedAttempts:
    """The failures of each address, and the credentials that were right.

    A credential that has been right at this process is checked even while its address has to wait:
    many callers can share the address of a proxy, and one of them must not lock out the others.

    Args:
        per_minute: How many failures an address may have.
        clock: Seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._good: OrderedDict[str, None] = OrderedDict()

    def check(self, address: str, credential: str) -> None:
        """Check that a credential of an address may be tried.

        Raises:
            TooManyAttempts: The address has to wait.
        """
        if fingerprint(credential) in self._good:
            return
        bucket = self._buckets.get(_network(address))
        if bucket is not None and self._refill(bucket) < 1:
            raise TooManyAttempts((1 - bucket.left) * 60 / self._per_minute)

    def failed(self, address: str, credential: str) -> None:
        """Count a wrong credential."""
        self._good.pop(fingerprint(credential), None)
        network = _network(address)
        bucket = self._buckets.pop(network, None) or _Bucket(self._per_minute, self._clock())
        bucket.left = self._refill(bucket) - 1
        self._buckets[network] = bucket
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)

    def succeeded(self, credential: str) -> None:
        """Remember a right credential."""
        digest = fingerprint(credential)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > MAX_GOOD_CREDENTIALS:
            self._good.popitem(last=False)

    def _refill(self, bucket: _Bucket) -> float:
        now = self._clock()
        earned = (now - bucket.at) * self._per_minute / 60
        bucket.left, bucket.at = min(bucket.left + earned, self._per_minute), now
        return bucket.left


def _network(address: str) -> str:
    """Return what shares a limit: an IPv4 address, or the network of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
