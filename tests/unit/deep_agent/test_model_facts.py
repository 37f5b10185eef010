"""What the bundled table says of models, by every kind of name that a user may write."""

import subprocess
import sys

import pytest

from fanout.orchestrator.deep_agent.models.facts import (
    WINDOWS_NOT_IN_THE_TABLE,
    context_window,
    price,
)
from fanout.orchestrator.deep_agent.models.tokens import ModelUsage

MILLION = 1_000_000
UNKNOWN = [
    "scripted:/a/gemini-2.5-flash.yaml",
    "ollama_chat/gpt-oss-20b",
    "gpt-nonsense",
    "nobody/gpt-5",
    "",
]


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gemini-2.5-flash", 1_048_576),
        ("gemini-2.5-pro", 1_048_576),
        ("gpt-5", 400_000),
        ("openai/gpt-4o", 128_000),
        ("azure/gpt-4o", 128_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        (" gpt-4o , gemini-2.5-flash", 128_000),
    ],
)
def test_a_window_is_known_by_the_name_that_the_user_writes(model: str, tokens: int) -> None:
    assert context_window(model) == tokens


@pytest.mark.parametrize("model", UNKNOWN)
def test_of_an_unknown_model_nothing_is_guessed(model: str) -> None:
    assert context_window(model) is None
    assert price(model, ModelUsage(input_tokens=MILLION)) is None


def test_cached_input_costs_less_and_output_more() -> None:
    read = price("gpt-4o", ModelUsage(input_tokens=MILLION))
    cached = price("gpt-4o", ModelUsage(input_tokens=MILLION, cached_tokens=MILLION))
    written = price("openai/gpt-4o", ModelUsage(output_tokens=MILLION))
    assert (read, cached, written) == (2.5, 1.25, 10.0)


def test_a_free_call_has_a_price_too() -> None:
    assert price("gemini-2.5-flash", ModelUsage()) == 0


def test_a_provider_that_counts_more_cached_than_read_breaks_nothing() -> None:
    assert price("gpt-4o", ModelUsage(input_tokens=0, cached_tokens=MILLION)) == 0


def test_what_we_add_to_the_table_is_still_missing_there() -> None:
    from genai_prices.data import providers  # noqa: PLC0415 - large, and only this test looks into it

    (google,) = (provider for provider in providers if provider.id == "google")
    known = {model.id: model.context_window for model in google.models}
    assert {name: known[name] for name in WINDOWS_NOT_IN_THE_TABLE} == dict.fromkeys(
        WINDOWS_NOT_IN_THE_TABLE
    )


def test_the_table_is_loaded_when_it_is_asked_and_not_before() -> None:
    program = (
        "import fanout.orchestrator.deep_agent.create, sys; sys.exit('genai_prices' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
