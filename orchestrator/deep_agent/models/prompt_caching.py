"""When a provider is asked to keep the beginning of a conversation, which is then cheaper to send again."""

from __future__ import annotations

from google.adk.agents.context_cache_config import ContextCacheConfig
from google.genai import types

GEMINI_MIN_TOKENS = 32_768
"""Of the request before. Making a cache is billed like one more request, and Gemini serves shorter
repetitions cheaper by itself; an agent that has read this much goes on for many calls."""
GEMINI_TTL_SECONDS = 300
"""Storing is billed by time, and a cache does not grow with the conversation: the next holds more
of it."""
GEMINI_USER_TURNS = 5
"""The same, where a person answers between the calls."""
GEMINI_CREATE_TIMEOUT_SECONDS = 20
"""A cache that takes longer to make costs more time than it is worth; the request goes out without
it."""
CLAUDE_MIN_TOKENS = 2_048
"""Below this most Claude models keep nothing. Writing costs a quarter more, reading nine tenths
less."""
CLAUDE_TTL_SECONDS = 300
"""The shorter and cheaper of Anthropic's two; each use renews it, and agents call more often than
that."""

_GEMINI = ContextCacheConfig(
    min_tokens=GEMINI_MIN_TOKENS,
    ttl_seconds=GEMINI_TTL_SECONDS,
    cache_intervals=GEMINI_USER_TURNS,
    create_http_options=types.HttpOptions(timeout=GEMINI_CREATE_TIMEOUT_SECONDS * 1000),
)
_CLAUDE = ContextCacheConfig(min_tokens=CLAUDE_MIN_TOKENS, ttl_seconds=CLAUDE_TTL_SECONDS)

_BY_PREFIX = {"gemini-": _GEMINI, "claude-": _CLAUDE, "anthropic/": _CLAUDE}


def caching_of(model: str) -> ContextCacheConfig | None:
    """How requests to this model are cached.

    None where the provider does it unasked, or not at all.
    """
    return next((config for prefix, config in _BY_PREFIX.items() if model.startswith(prefix)), None)
