"""What people read of failures: a row for each failure type."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import fanout.orchestrator
import fanout.workers
from fanout.orchestrator.deep_agent import say_ending
from fanout.orchestrator.jobs.failure_texts import FAILURE_TEXTS, next_step, what_happened
from fanout.orchestrator.jobs.failures import JobFailure


def failure_types() -> Iterator[type[JobFailure]]:
    """Yield all public failure types; each module that defines one is imported for it."""
    for package in (fanout.orchestrator, fanout.workers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".inside" not in module.name:
                importlib.import_module(module.name)
    waiting: list[type[JobFailure]] = [JobFailure]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not kind.__name__.startswith("_") and kind.__module__.startswith("fanout."):
            yield kind


@pytest.mark.slow
def test_every_failure_type_has_a_sentence_and_no_sentence_is_left_without_its_type() -> None:
    assert {kind.__name__ for kind in failure_types()} == set(FAILURE_TEXTS)


@pytest.mark.parametrize("kind", FAILURE_TEXTS)
def test_a_failure_is_said_in_a_sentence_with_a_next_step_and_without_a_class(kind: str) -> None:
    happened, step = what_happened(kind, ""), next_step(kind, "zn1a2b3c")

    assert re.fullmatch(r"[A-Z].*\.", happened)
    assert re.match(r"[A-Z]|fanout ", step)
    assert "{" not in step
    assert not re.search(r"\b[A-Z][a-z]+[A-Z]\w+", f"{happened} {step}".replace("FANOUT_", ""))


def test_a_message_of_its_own_comes_first_and_an_unknown_type_has_a_sentence_too() -> None:
    assert what_happened("AgentFailed", "The reply was cut.") == "The reply was cut."
    assert what_happened("FromTheFuture", " ") == "The job failed."
    assert next_step("FromTheFuture", "zn1a2b3c").endswith("fanout logs zn1a2b3c")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "The agent's last reply had no text."),
        ("FinishReason.MAX_TOKENS", "cut at the model's output limit"),
        ("length", "cut at the model's output limit"),
        ("SAFETY", "stopped the agent's reply for its content (safety)"),
        ("MALFORMED_FUNCTION_CALL", "a tool call that could not be read"),
        ("SOMETHING_NEW", "without an answer (something_new)"),
    ],
)
def test_a_run_without_an_answer_says_how_its_last_reply_ended(code: str | None, said: str) -> None:
    assert said in say_ending(code)
    assert "FinishReason" not in say_ending(code)
