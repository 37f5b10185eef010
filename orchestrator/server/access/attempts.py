"""Failed attempts to authenticate, by address: whoever guesses has to wait."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

from fanout.orchestrator.jobs.store.api_keys import fingerprint
from fanout.orchestrator.server.access.buckets import Buckets

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


class FailedAttempts:
    """The failures of each address, and the credentials that were right.

    A credential that has been right at this process is checked even while its address has to wait:
    many callers can share the address of a proxy, and one of them must not lock out the others.

    Args:
        per_minute: How many failures an address may have.
        clock: Seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = Buckets(per_minute, clock)
        self._good: OrderedDict[str, None] = OrderedDict()

    def check(self, address: str, credential: str) -> None:
        """Check that a credential of an address may be tried.

        Raises:
            TooManyAttempts: The address has to wait.
        """
        if fingerprint(credential) in self._good:
            return
        wait = self._failures.wait(network_of(address))
        if wait:
            raise TooManyAttempts(wait)

    def failed(self, address: str, credential: str) -> None:
        """Count a wrong credential."""
        self._good.pop(fingerprint(credential), None)
        self._failures.take(network_of(address))

    def succeeded(self, credential: str) -> None:
        """Remember a right credential."""
        digest = fingerprint(credential)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > MAX_GOOD_CREDENTIALS:
            self._good.popitem(last=False)


def network_of(address: str) -> str:
    """Return what shares a limit: an IPv4 address, or the network of an IPv6 one.

    Args:
        address: The address; another text is returned as it is.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
