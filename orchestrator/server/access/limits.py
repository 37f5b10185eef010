"""The share of a server process for one caller or one address: token buckets.

A caller has limits of requests a minute, open requests and streams. An address has a limit of
failed attempts to authenticate, so that guessing is slow.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...configuration.api_settings import ApiSettings
from ...jobs.store.api_keys import fingerprint
from .callers import Caller
from .refusals import refuse

MAX_BUCKETS = 10_000
"""The most buckets of one process, in some 2 MB; with more, the least recently used one is removed.
"""
_MINUTE = 60.0
MAX_GOOD_CREDENTIALS = 10_000
"""The most accepted credentials that are remembered as fingerprints: they pass while their address,
for example a proxy's, has to wait."""
IPV6_NETWORK_BITS = 64
"""The size of the IPv6 network that one household or machine has: its single addresses change
freely."""
EVENT_STREAM = "text/event-stream"
FULL_SECONDS = "10"
"""The time after which a reader tries again when there are too many streams; a balancer finds it
another server."""


@dataclass
class _Bucket:
    """The rest of a bucket at one time."""

    left: float
    at: float


class Buckets:
    """The buckets of one process; each is full at first.

    Args:
        per_minute: The inflow of each, and its size.
        clock: Returns seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait(self, name: str) -> float:
        """Return the seconds until one may be taken; 0: now."""
        bucket = self._buckets.get(name)
        missing = 1 - self._refilled(bucket) if bucket is not None else 0.0
        return max(0.0, missing) * _MINUTE / self._per_minute

    def take(self, name: str) -> None:
        """Take one."""
        bucket = self._buckets.pop(name, None) or _Bucket(self._per_minute, self._clock())
        bucket.left = self._refilled(bucket) - 1
        self._buckets[name] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def _refilled(self, bucket: _Bucket) -> float:
        now = self._clock()
        earned = (now - bucket.at) * self._per_minute / _MINUTE
        bucket.left, bucket.at = min(bucket.left + earned, self._per_minute), now
        return bucket.left


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

    A credential that this process has accepted before is checked even while its address has to
    wait. Many callers can share the address of a proxy, and one of them must not lock out the
    others.

    Args:
        per_minute: How many failures an address may have.
        clock: Returns seconds.
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
        wait = self._failures.wait(limited_network(address))
        if wait:
            raise TooManyAttempts(wait)

    def failed(self, address: str, credential: str) -> None:
        """Count a wrong credential."""
        self._good.pop(fingerprint(credential), None)
        self._failures.take(limited_network(address))

    def succeeded(self, credential: str) -> None:
        """Remember a right credential."""
        digest = fingerprint(credential)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > MAX_GOOD_CREDENTIALS:
            self._good.popitem(last=False)


def limited_network(address: str) -> str:
    """Return the unit of a limit: an IPv4 address, or the network of an IPv6 one.

    Args:
        address: The address; another text is returned unchanged.
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


class CallerLimits:
    """Refuses what exceeds a caller's share with 429, and streams beyond the process's with 503.

    It counts in its own process, so a caller may use the same share of each further server.

    Args:
        app: The application.
        settings: The limits.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._requests = Buckets(settings.requests_per_minute)
        self._max_streams = settings.max_streams
        self._max_streams_of_caller = settings.max_streams_of_caller
        self._streams: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        """Open requests that are not streams, such as those that wait for a job."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, unless its caller has used its share."""
        caller = scope.get("state", {}).get("caller")
        if not isinstance(caller, Caller):
            await self._app(scope, receive, send)
            return
        name = f"{caller.tenant}/{caller.owner}/{caller.name}"
        wait = self._requests.wait(name)
        if wait:
            await refuse(
                scope,
                receive,
                send,
                status=429,
                detail=(
                    "Too many requests a minute: wait, or ask for many things at once (lists, "
                    "?wait=, streams)."
                ),
                headers={"Retry-After": f"{wait + 0.5:.0f}"},
            )
            return
        self._requests.take(name)
        if self._open[name] >= self._max_streams_of_caller:
            await refuse(
                scope,
                receive,
                send,
                status=429,
                detail="Too many of your requests are not answered yet: wait for some of them.",
                headers={"Retry-After": FULL_SECONDS},
            )
            return
        await self._serve(name, scope, receive, send)

    async def _serve(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and count it while it is open, or a stream."""
        is_counted = is_refused = False

        async def counted(message: Message) -> None:
            nonlocal is_counted, is_refused
            if is_refused:
                return  # the server reports to the application that the client has disconnected
            if message["type"] == "http.response.start" and _is_stream(message):
                status = self._full_status(name)
                if status is not None:
                    is_refused = True
                    detail = "There are too many open streams: close some, or try again."
                    wait = {"Retry-After": FULL_SECONDS}
                    await refuse(scope, receive, send, status=status, detail=detail, headers=wait)
                    return
                is_counted = True
                self._open[name] -= 1
                self._streams[name] += 1
            await send(message)

        self._open[name] += 1
        try:
            await self._app(scope, receive, counted)
        finally:
            kind = self._streams if is_counted else self._open
            kind[name] -= 1
            if not kind[name]:
                del kind[name]

    def _full_status(self, name: str) -> int | None:
        if self._streams[name] >= self._max_streams_of_caller:
            return 429
        return 503 if self._streams.total() >= self._max_streams else None


def _is_stream(message: Message) -> bool:
    return Headers(raw=list(message["headers"])).get("content-type", "").startswith(EVENT_STREAM)
