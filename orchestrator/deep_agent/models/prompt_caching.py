"""When a provider is asked to cache the beginning of a conversation, to make repeats cheaper."""

from __future__ import annotations

from google.adk.agents.context_cache_config import ContextCacheConfig
from google.genai import types

GEMINI_MIN_TOKENS = 32_768
"""The size of the previous request from which a cache is created. Creating it is billed like one
more request, and Gemini discounts shorter repetitions by itself; an agent that has read this much
makes many more calls."""
GEMINI_TTL_SECONDS = 300
"""Storage is billed by time, and a cache does not grow with the conversation: the next one holds
more of it."""
GEMINI_USER_TURNS = 5
"""After how many messages of the user a new cache is created."""
GEMINI_CREATE_TIMEOUT_SECONDS = 20
"""A cache that takes longer to create costs more time than it saves; the request is sent without
it."""
CLAUDE_MIN_TOKENS = 2_048
"""Most Claude models cache nothing smaller. Writing costs a quarter more, reading nine tenths
less."""
CLAUDE_TTL_SECONDS = 300
"""The shorter and cheaper of Anthropic's two; each use renews it, and agents call more often."""

_GEMINI = ContextCacheConfig(
    min_tokens=GEMINI_MIN_TOKENS,
    ttl_seconds=GEMINI_TTL_SECONDS,
    cache_intervals=GEMINI_USER_TURNS,
    create_http_options=types.HttpOptions(timeout=GEMINI_CREATE_TIMEOUT_SECONDS * 1000),
)
_CLAUDE = ContextCacheConfig(min_tokens=CLAUDE_MIN_TOKENS, ttl_seconds=CLAUDE_TTL_SECONDS)

_BY_PREFIX = {"gemini-": _GEMINI, "claude-": _CLAUDE, "anthropic/": _CLAUDE}


def caching_of(model: str) -> ContextCacheConfig | None:
    """Return the cache settings for a model.

    None if its provider caches without being asked, or not at all.
    """
    return next((config for prefix, config in _BY_PREFIX.items() if model.startswith(prefix)), None)
