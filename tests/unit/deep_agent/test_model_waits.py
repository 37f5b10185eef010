"""When a service says that its limit or quota is filled up again."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fanout.orchestrator.deep_agent.models.errors import seconds_to_reset, translated
from fanout.orchestrator.deep_agent.models.states import closed_by, model_access


class Answered(Exception):
    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status_code = status
        self.response: Any = SimpleNamespace(headers=headers or {}, status_code=status)


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({}, "Your usage limit resets in 5 h.", 18_000),
        ({}, "Please try again in 1 hour and 30 minutes.", 5_400),
        ({"x-ratelimit-reset-requests": "6m0s"}, "", 360),
        (
            {"x-ratelimit-reset-tokens": "20ms", "x-ratelimit-remaining-tokens": "17"},
            "resets in 2 d",
            172_800,
        ),
        ({}, "not now", None),
        ({"x-ratelimit-reset": "soon"}, "", None),
    ],
)
def test_the_time_of_a_reset_is_read_from_headers_and_words(
    headers: dict[str, str], message: str, seconds: float | None
) -> None:
    found = seconds_to_reset(Answered(429, message, headers))
    assert found == (None if seconds is None else pytest.approx(seconds, abs=2))


def test_the_time_of_a_reset_may_be_one_of_day() -> None:
    at = time.time() + 600
    found = seconds_to_reset(Answered(429, "", {"anthropic-ratelimit-unified-reset": str(at)}))
    assert found is not None
    assert found <= 600
    assert found >= 600 - (time.time() + 600 - at)


@pytest.mark.parametrize(
    ("status", "message", "state"),
    [
        (402, "", "exhausted"),
        (429, "You exceeded your current quota, check billing.", "exhausted"),
        (429, "slow down", "limited"),
        (503, "", "away"),
        (401, "", "refused"),
        (404, "", "refused"),
        (400, "no such field", None),
        (302, "", None),
    ],
)
def test_what_a_failure_says_of_all_requests(status: int, message: str, state: str | None) -> None:
    assert closed_by(translated(Answered(status, message), "gpt-5")) == state


def test_an_access_changes_with_the_key_and_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for key, address in (("a", ""), ("b", ""), ("b", "http://127.0.0.1:1/v1")):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        found.add(model_access("gpt-5"))
    assert len(found) == 3
    assert model_access("scripted:file") is None
