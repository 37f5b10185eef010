import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fanout.orchestrator.cli.commands.bundled_examples import DEMO, find_example
from fanout.orchestrator.cli.commands.examples import CHECK_MODEL
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.models.scripted_model import Conversation

BAKERY = find_example(DEMO)
SCRIPT = BAKERY.folder / "script.yaml"


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    _, *arguments = (BAKERY.check or "").split()
    argv = [sys.executable, "-B", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def scripted_edits() -> list[dict[str, str]]:
    conversations = yaml.safe_load(SCRIPT.read_text(encoding="utf-8"))["conversations"]
    calls = [
        call
        for talk in conversations
        for reply in talk["replies"]
        for call in reply.get("calls", ())
    ]
    return [call["args"] for call in calls if call["tool"] == "edit_file"]


def test_the_sample_is_red_and_green_after_the_scripted_edits(tmp_path):
    BAKERY.copy_workspace(tmp_path)
    before = run_tests(tmp_path)

    for edit in scripted_edits():
        path = tmp_path / edit["file_path"].removeprefix("/workspace/")
        text = path.read_text()
        assert text.count(edit["old_string"]) == 1
        path.write_text(text.replace(edit["old_string"], edit["new_string"]))
    after = run_tests(tmp_path)

    assert (before.returncode, after.returncode) == (1, 0)
    assert "failures=5" in before.stderr
    assert "Ran 10 tests" in after.stderr


def test_the_script_gives_every_task_of_the_coordinator_a_conversation_of_its_own():
    conversations = yaml.safe_load(SCRIPT.read_text(encoding="utf-8"))["conversations"]
    calls = [call for reply in conversations[0]["replies"] for call in reply.get("calls", ())]
    tasks = [call["args"] for call in calls if call["tool"] == "task"]

    answered = [
        [
            talk
            for talk in conversations[1:]
            if talk["agent"] == task["subagent_type"] and fits(talk, task)
        ]
        for task in tasks
    ]

    assert len(tasks) == 6
    assert [len(talks) for talks in answered] == [1] * 6


def fits(talk: dict[str, str], task: dict[str, str]) -> bool:
    return (
        Conversation.model_validate(talk).match(task["subagent_type"], task["description"])
        is not None
    )


@pytest.mark.parametrize("model", [BAKERY.scripted_model, CHECK_MODEL])
def test_the_models_of_the_demo_are_made(model):
    assert resolve_model(model, agent_name="coordinator") is not None


def test_the_sample_is_not_put_over_another_bakery(tmp_path):
    BAKERY.copy_workspace(tmp_path)

    with pytest.raises(UsageProblem, match="name an empty or a new folder"):
        BAKERY.copy_workspace(tmp_path)
