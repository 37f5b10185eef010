"""The key `summarization` of an agent definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig

HEAD = "name: one\ndescription: x\ninstruction: x\n"


def load(folder: Path, text: str) -> AgentDefinition:
    path = folder / "one.yaml"
    path.write_text(HEAD + text)
    return load_agent_definition(path)


def test_what_is_set_is_taken_and_the_rest_is_the_deep_agents_default(tmp_path: Path) -> None:
    assert (
        SummarizationConfig(**load(tmp_path, "").summarization.settings()) == SummarizationConfig()
    )
    text = "summarization: {trigger: [messages, 50], keep: [fraction, 0.2], model: gpt-5}\n"
    settings = load(tmp_path, text).summarization.settings()
    assert SummarizationConfig(**settings) == SummarizationConfig(
        trigger=("messages", 50), keep=("fraction", 0.2), model="gpt-5"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("summarization:\n  trigger: [fraction, 1.5]\n", "one.yaml:5: .*there is no fraction 1.5"),
        ("summarization:\n  keep: [tokens, 0]\n", "one.yaml:5: .*there is no tokens 0"),
        ("summarization:\n  keep: [lines, 5]\n", r"one.yaml:5: summarization\.keep"),
        (
            "summarization:\n  when: late\n",
            "unknown key 'summarization.when'. Known are trigger, keep, model",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidAgentDefinition, match=words):
        load(tmp_path, text)
