"""A connection to Redis, with the options that fanout needs everywhere."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, TypeVar

import redis
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import ExponentialBackoff, NoBackoff

from ...cancellation import cancel_and_wait
from ..redis_url import (
    SentinelAddress,
    canonical_url,
    sentinel_address,
    tls_options,
)
from .redis_errors import (
    EndedAfterHandshake,
    is_worth_repeating,
    redis_failure,
    redis_failures,
)

CONNECT_SECONDS = 5.0
"""Redis accepts a connection within milliseconds, over a slow network within a second."""
COMMAND_SECONDS = 5.0
"""No command of fanout blocks, so an answer that takes longer means that Redis is lost."""
ANSWER_SECONDS = 2.0
"""A Redis on this machine responds within milliseconds."""
RETRIES = 2
DEFAULT_USER = "default"
"""The user of Redis whose password is that of the server."""
MAX_CONNECTIONS = 64
"""The most connections of a process, shared by hundreds of agents: a batch of commands holds one
for under a millisecond."""
URGENT_CONNECTIONS = 4
"""The connections of a worker for heartbeats, cancellations, its registration and the search for
leftovers. Its jobs do not use them, so that leases are renewed however many jobs use Redis at once.
"""

MAX_BATCH = 100
"""The most commands in one pipeline: reading so many answers takes some milliseconds, in which the
loop does nothing else."""

Answer = TypeVar("Answer")
_Command = tuple[tuple[Any, ...], dict[str, Any], "asyncio.Future[Any]"]
"""A command's arguments and options, and the future of its answer."""


class _BatchingRedis(Redis):
    """Sends the commands that are issued in the same round of the loop in one pipeline.

    Hundreds of agents issue theirs together, when their models' replies arrive. Of ten calls that a
    pipeline sends together, each costs less than half of the processor time of a call of its own,
    and they share a connection. Each caller gets the answer, or the error, of its own command. A
    command of a cancelled caller is dropped while it is unsent, and its answer is ignored
    afterwards.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._unsent: list[_Command] = []
        self._batches: set[asyncio.Task[None]] = set()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command with the others of this round, and return its answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._send_unsent, loop)
        self._unsent.append((args, options, answer))
        return await answer

    def _send_unsent(self, loop: asyncio.AbstractEventLoop) -> None:
        commands, self._unsent = self._unsent, []
        for first in range(0, len(commands), MAX_BATCH):
            batch = loop.create_task(self._send(commands[first : first + MAX_BATCH]))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)

    async def _send(self, commands: Sequence[_Command]) -> None:
        try:
            async with self.pipeline(transaction=False) as pipeline:
                # Callers may be cancelled while it waits for one.
                pipeline.connection = await self.connection_pool.get_connection()  # type: ignore[no-untyped-call] # redis-py's types have gaps
                commands = [command for command in commands if not command[2].done()]
                for args, options, _ in commands:
                    pipeline.execute_command(*args, **options)
                answers = await pipeline.execute(raise_on_error=False)
        except asyncio.CancelledError:
            answers = [redis.ConnectionError("The connection to Redis was closed.")] * len(commands)
        except Exception as error:  # noqa: BLE001 - each caller handles it
            answers = [error] * len(commands)
        for (_, _, caller), answer in zip(commands, answers, strict=True):
            if caller.done():
                continue
            if isinstance(answer, BaseException):
                caller.set_exception(_copied(answer))
            else:
                caller.set_result(answer)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections; commands without an answer fail."""
        self._send_unsent(asyncio.get_running_loop())
        await cancel_and_wait(*self._batches)
        await super().aclose(close_connection_pool)


def _copied(error: BaseException) -> BaseException:
    """Return a separate copy of an error for each caller: raising it adds a traceback to it."""
    copied = copy(error).with_traceback(error.__traceback__)
    copied.__cause__, copied.__context__ = error.__cause__, error.__context__
    copied.__suppress_context__ = error.__suppress_context__
    return copied


class _Retry(Retry):
    """Repeats what another try may repair: not a refused password or certificate."""

    async def call_with_retry(
        self,
        do: Callable[[], Awaitable[Answer]],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> Answer:
        def is_worth_it(error: Exception) -> bool:
            return is_worth_repeating(error) and (is_retryable is None or is_retryable(error))

        return await super().call_with_retry(do, fail, is_worth_it, with_failure_count)


class _SendsDirectly(AbstractConnection):
    """Sends in its caller's task.

    redis-py limits the time of each write with `wait_for`, which loses a cancellation that arrives
    meanwhile before Python 3.12: a Ctrl-C, or the cancellation of a job, would do nothing.
    """

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call] # redis-py's types have gaps
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._send_packed_command(command)
        except OSError as error:  # a TimeoutError is one
            await self.disconnect(nowait=True)
            why = type(error).__name__
            raise redis.ConnectionError(f"Nothing can be sent to Redis ({why}).") from error
        except BaseException:
            await self.disconnect(nowait=True)  # what was sent may be incomplete
            raise


class _Tcp(_SendsDirectly, Connection):
    pass


class _UnixSocket(_SendsDirectly, UnixDomainSocketConnection):
    pass


class _Tls(_SendsDirectly, SSLConnection):
    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in.

        Raises:
            EndedAfterHandshake: The server hung up. TLS 1.3 checks a client's certificate after the
                client's own handshake, and the alert that says so may be lost with the connection.
        """
        try:
            await super().on_connect_check_health(check_health)
        except redis.ConnectionError as error:
            raise EndedAfterHandshake("The server ended the connection.") from error


class _Primary(_SendsDirectly, SentinelManagedConnection):
    """A connection to the server that Sentinels name when it connects."""


class _TlsPrimary(_Tls, SentinelManagedSSLConnection):
    pass


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """A bounded pool of connections to the primary; a new primary gets new ones."""


_OURS = {Connection: _Tcp, SSLConnection: _Tls, UnixDomainSocketConnection: _UnixSocket}


def connect(url: str, max_connections: int = MAX_CONNECTIONS) -> Redis:
    """Return a client that connects on first use.

    Answers are text. A command on a lost connection is retried twice, within a second.

    Args:
        url: A URL that `check_redis_url` accepts. With TLS the certificate and its host name are
            verified before anything is sent.
        max_connections: A caller waits for one when as many are in use.
    """
    url = canonical_url(url)
    tls = tls_options(url)
    options = {
        "decode_responses": True,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": COMMAND_SECONDS,
        "retry": _Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        "max_connections": max_connections,
        "timeout": COMMAND_SECONDS,
        **(tls or {}),
    }
    if address := sentinel_address(url):
        return _BatchingRedis(_primary_pool(address, tls, options))
    pool = BlockingConnectionPool.from_url(url, **options)
    pool.connection_class = _OURS[pool.connection_class]
    return _BatchingRedis(pool)


def _primary_pool(
    address: SentinelAddress, tls: dict[str, Any] | None, options: dict[str, Any]
) -> BlockingConnectionPool:
    """Return a pool of connections to the primary.

    Args:
        address: The Sentinels.
        tls: The options of TLS, also for the Sentinels; None: without.
        options: Of the pool and its connections.
    """
    asked = {
        "decode_responses": True,
        "socket_connect_timeout": ANSWER_SECONDS,  # the next one is asked instead
        "socket_timeout": ANSWER_SECONDS,
        **({"ssl": True, **tls} if tls else {}),
        **address.sentinel_login,
    }
    sentinel = Sentinel(address.sentinels, sentinel_kwargs=asked)  # type: ignore[no-untyped-call] # redis-py's types have gaps
    return _PrimaryPool(  # type: ignore[no-untyped-call] # as above
        address.primary,
        sentinel,
        connection_class=_TlsPrimary if tls else _Primary,
        db=address.database,
        **address.login,
        **options,
    )


async def identity(redis_client: Redis) -> str:
    """Return who the caller is, as far as it is known independently of the caller.

    That is the user of Redis. Behind a password that all share, which is the user `default`, the
    person is unknown; the Unix socket of an embedded Redis is open to its owner only, so there it
    is the owner's name.

    Args:
        redis_client: A client that `connect` returned.

    Raises:
        LedgerUnavailable: Redis does not respond.
    """
    try:
        user = str(await redis_client.acl_whoami())
    except (redis.RedisError, OSError) as error:
        if "unknown command" not in str(error):  # some managed ones have no users
            raise redis_failure(error) from error
        user = DEFAULT_USER
    if user == DEFAULT_USER and "path" in redis_client.connection_pool.connection_kwargs:
        return _system_user()
    return user


def _system_user() -> str:
    """Return the name of this process's user on this machine, not of its environment."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def answers(url: str) -> bool:
    """Return whether a Redis on this machine responds to PING; blocks.

    Args:
        url: A URL as for `connect`.
    """
    pool = redis.ConnectionPool.from_url(
        url,
        socket_connect_timeout=ANSWER_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), 0),
    )
    try:
        with redis.Redis.from_pool(pool) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


async def server_time_ms(redis: Redis) -> int:
    """Return the time in milliseconds by the Redis server's clock, which all records use.

    Raises:
        LedgerUnavailable: Redis does not respond.
    """
    with redis_failures():
        seconds, micros = await redis.time()
    return int(seconds) * 1000 + int(micros) // 1000
