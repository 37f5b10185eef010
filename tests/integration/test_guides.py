"""The programs of the guides in `docs/` run exactly as they stand there, with a scripted model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import REPOSITORY
from tests.integration.models.model_server import Answer, environment, model_server
from tests.integration.models.model_server import call as called
from tests.integration.models.model_server import text as said
from tests.integration.models.test_own_search import ANSWER, URL, gemini_found
from tests.integration.scripts import call, calls, conversation, says, write_script

PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
PROGRAMS = {
    name: text
    for guide in sorted((REPOSITORY / "docs").glob("*.md"))
    for name, text in PROGRAM.findall(guide.read_text(encoding="utf-8"))
}

RISKS = call(
    "edit_file",
    file_path="/workspace/report.md",
    old_string="## Risks\n",
    new_string="## Risks\nMany.\n",
)
CHANCES = call(
    "edit_file",
    file_path="/workspace/report.md",
    old_string="## Chances\n",
    new_string="## Chances\nMore.\n",
)
RUNS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "custom_tool.py": (
        [conversation("", calls(call("exchange_rate", currency="USD")), says("18.40 euros."))],
        ["18.40 euros."],
    ),
    "custom_backend.py": (
        [
            conversation(
                "",
                calls(call("write_file", file_path="/haiku.txt", content="Rows upon rows")),
                calls(call("grep", pattern="upon", path="/"), call("ls", path="/")),
                says("It is written."),
            )
        ],
        ["It is written.", "Rows upon rows"],
    ),
    "subagents.py": (
        [
            {
                "agent": "deep_agent",
                **conversation(
                    "",
                    calls(
                        call("task", description="the section Risks", subagent_type="writer"),
                        call("task", description="the section Chances", subagent_type="writer"),
                    ),
                    says("Both sections are written."),
                ),
            },
            {
                "agent": "writer",
                **conversation(
                    "Risks",
                    calls(call("read_file", file_path="/workspace/report.md")),
                    calls(RISKS),
                    says("done"),
                ),
            },
            {
                "agent": "writer",
                **conversation(
                    "Chances",
                    calls(call("read_file", file_path="/workspace/report.md")),
                    calls(CHANCES),
                    says("done"),
                ),
            },
        ],
        ["Both sections are written.", "## Risks\nMany.", "## Chances\nMore."],
    ),
    "middleware.py": (
        [
            conversation(
                "",
                *(calls(call("search", words=bird)) for bird in ("owls", "barn owls", "eagles")),
                says("Owls are birds."),
            )
        ],
        [
            "three pages about owls",
            "three pages about barn owls",
            "There is no money left",
            "Owls are birds.",
        ],
    ),
    "approval.py": (
        [
            conversation(
                "",
                calls(
                    call("pay", recipient="Ada", euros=30.0),
                    call("pay", recipient="Bob", euros=5000.0),
                ),
                says("Ada was paid, Bob was not."),
            )
        ],
        [
            "{'euros': 30.0, 'recipient': 'Ada'}: approve",
            "{'euros': 5000.0, 'recipient': 'Bob'}: reject",
            "Ada was paid",
        ],
    ),
    "structured_output.py": (
        [
            conversation(
                "",
                says("It is a bad idea."),
                says('{"approve": false, "score": 2, "reasons": ["too much", "too fast"]}'),
            )
        ],
        ["rejected 2 too much too fast"],
    ),
    "grading.py": (
        [
            {"agent": "writer", **conversation("", says("Much."), says("4.20, says the baker."))},
            {
                "agent": "grader",
                **conversation(
                    "<answer>\nMuch",
                    says('{"score": 2, "missing": ["a price", "a source"]}'),
                ),
            },
            {"agent": "grader", **conversation("4.20", says('{"score": 9, "missing": []}'))},
        ],
        ["round 1: 2/10", "round 2: 9/10", "4.20, says the baker."],
    ),
}


RESEARCH = "research.py"
"""It needs a model that searches, so it runs with one of a server on this machine."""


QUICK = {"custom_tool.py"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in RUNS]
)
@pytest.mark.slow
def test_a_program_of_a_guide_runs(name: str, tmp_path: Path) -> None:
    conversations, expected = RUNS[name]
    script = write_script(tmp_path, *conversations)
    printed = run(name, tmp_path, {"MODEL": f"scripted:{script}"})
    assert [text for text in expected if text not in printed] == [], printed


@pytest.mark.slow
def test_the_program_that_searches_the_web_runs(tmp_path: Path) -> None:
    search = Answer([called("web_search", query="price of rye bread")])
    with model_server([search, gemini_found(), Answer([said("It costs 4.20.")])]) as server:
        printed = run(RESEARCH, tmp_path, environment(server, "no-secret"))
    assert [text for text in (ANSWER, URL, "It costs 4.20.") if text not in printed] == [], printed


def run(name: str, folder: Path, variables: dict[str, str]) -> str:
    """Run a program as it stands in its guide; what it printed."""
    (folder / name).write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guides_have_the_programs_that_are_run() -> None:
    assert set(PROGRAMS) == {*RUNS, RESEARCH}
