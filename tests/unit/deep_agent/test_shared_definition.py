"""Agents of one definition share what cannot change, and see nothing of each other."""

import asyncio
from pathlib import Path

from fanout.orchestrator.configuration.agent_definitions import (
    GENERAL_PURPOSE,
    load_agent_definitions,
)
from fanout.orchestrator.deep_agent import Budget, create_deep_app
from fanout.orchestrator.deep_agent.adk_internals import tool_declaration
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.budget import BudgetLimits
from fanout.orchestrator.deep_agent.tools.todos import TodoTools
from fanout.orchestrator.delegation.agents import create_agent
from tests.unit.deep_agent.running import Run, script_file

SCRIPT = """
conversations:
- replies:
  - calls: [{tool: write_file, args: {file_path: /workspace/note.txt, content: "{{task}}"}}]
  - calls: [{tool: read_file, args: {file_path: /workspace/note.txt}}]
  - calls: [{tool: ls, args: {path: /workspace}}]
  - {text: "{{last_result}}"}
"""


async def test_two_jobs_of_one_definition_at_once_do_not_see_each_other(tmp_path: Path) -> None:
    definition = (await asyncio.to_thread(load_agent_definitions))[GENERAL_PURPOSE]
    model = f"scripted:{script_file(tmp_path, SCRIPT)}"

    def job(name: str, calls: int) -> tuple[Run, Budget, Path]:
        folder = tmp_path / name
        folder.mkdir()
        budget = Budget(BudgetLimits(max_model_calls=calls))
        agent = create_agent(
            *(definition, model, []),
            added_instruction="",
            files_folder="/workspace",
            backend=DirectoryBackend(folder, mount="/workspace"),
            is_subagent=True,
        )
        run = Run(model, name=name)
        run.app = create_deep_app(agent, budget=budget)
        return run, budget, folder

    jobs = [job(f"job{number}", 10 if number % 2 else 2) for number in range(6)]
    await asyncio.gather(*(run.to_end(f"only of {folder.name}") for run, _, folder in jobs))

    for number, (run, budget, folder) in enumerate(jobs):
        assert (folder / "note.txt").read_text() == f"only of {folder.name}"
        assert (budget.reached is None) == bool(number % 2)
        said = str([event.model_dump() for event in run.events])
        assert not any(other.name in said for _, _, other in jobs if other != folder)


def test_a_declaration_that_is_changed_in_place_is_changed_for_nobody_else() -> None:
    (tool, *_), (same, *_) = TodoTools().tools(), TodoTools().tools()
    name = tool.name

    tool_declaration(tool).name = "prefixed_name"

    assert tool_declaration(tool).name == name == tool_declaration(same).name
