"""`fanout config --limits`: every limit, with the settings' values in force."""

import json

import pytest
from typer.testing import CliRunner

from fanout.orchestrator.cli.app import app


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["config", "--limits", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_all_limits_are_printed_as_json_with_the_values_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FANOUT_LIMITS__MAX_TOOL_CALLS", "77")
    limits = {limit["name"]: limit for limit in json.loads(printed("--json"))["limits"]}

    assert limits["FANOUT_LIMITS__MAX_TOOL_CALLS"]["value"] == 77
    assert limits["MAX_SAME_CALLS"] == {
        "name": "MAX_SAME_CALLS",
        "value": 4,
        "unit": "",
        "where": "orchestrator/deep_agent/loop_guard.py",
        "reason": limits["MAX_SAME_CALLS"]["reason"],
    }
    assert limits["LIVE_OUTPUT_SECONDS"]["unit"] == "seconds"


@pytest.mark.slow
def test_a_person_gets_a_table() -> None:
    assert "tool_texts.LONGEST_WAIT_SECONDS" in printed()
