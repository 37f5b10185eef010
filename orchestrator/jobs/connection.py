"""A connection to Redis, with the options that fanout needs everywhere."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 5.0
"""No command of ours blocks, so an answer that takes longer means that Redis is gone."""
RETRIES = 2
MAX_CONNECTIONS = 64
"""A process with hundreds of agents shares these: each command holds one for under a millisecond."""


def connect(url: str) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://`; it connects when it is first used.

    Answers are text. A lost connection is tried again twice, within a second.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        decode_responses=True,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=COMMAND_SECONDS,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        max_connections=MAX_CONNECTIONS,
        timeout=COMMAND_SECONDS,
    )
    return Redis(connection_pool=pool)
