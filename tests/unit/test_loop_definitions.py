"""The key `loops` of an agent definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.deep_agent import LoopLimits, LoopPolicy

HEAD = "name: one\ndescription: x\ninstruction: x\n"


def policy(folder: Path, text: str) -> LoopPolicy:
    path = folder / "one.yaml"
    path.write_text(HEAD + text)
    return LoopPolicy(**load_agent_definition(path).loops.settings())


def test_what_is_set_is_taken_and_the_rest_is_the_default(tmp_path: Path) -> None:
    assert policy(tmp_path, "") == LoopPolicy()
    text = "loops: {exempt: [look_*], per_tool: {execute: {max_same: 30, stop_after: 60}}}\n"
    assert policy(tmp_path, text) == LoopPolicy(
        exempt=("look_*",), per_tool={"execute": LoopLimits(max_same=30, stop_after=60)}
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loops: {max_same: 3}\n", "one.yaml:4: .*give max_same and stop_after together"),
        ("loops: {max_same: 3, stop_after: 3}\n", "stop_after must be above max_same"),
        ("loops:\n  often: 3\n", "one.yaml:5: unknown key 'loops.often'. Known are max_same"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InvalidAgentDefinition, match=words):
        policy(tmp_path, text)
