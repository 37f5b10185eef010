"""What `create_deep_agent` makes of its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend, FilesystemBackend
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.state import StateBackend
from fanout.orchestrator.deep_agent.create import create_deep_agent
from fanout.orchestrator.deep_agent.delegation.roster import SubAgentSpec, tool_name
from fanout.orchestrator.deep_agent.mcp.server import McpServer
from fanout.orchestrator.deep_agent.mcp.tools import McpTools
from tests.integration.scripts import call, says
from tests.unit.deep_agent.instructions import instructions
from tests.unit.deep_agent.running import Run, scripted
from tests.unit.deep_agent.talking import recorder

SPEC = SubAgentSpec(name="other", description="Does other things.")


class Delegating(BaseToolset):
    """A toolset like TaskToolset."""

    delegates = True

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        del readonly_context
        return []


def made(**options: Any) -> LlmAgent:
    return create_deep_agent(scripted([says("x")]), **options)


def tool_names(agent: LlmAgent) -> set[str]:
    return {tool.name for tool in agent.tools if isinstance(tool, BaseTool)}


def declared(request: Any) -> set[str]:
    return {each.name for tool in request.config.tools or () for each in tool.function_declarations}


async def test_without_arguments_it_delegates_to_an_agent_for_anything() -> None:
    model = recorder("p", [{"calls": [call("task", description="look")]}, says("done")])
    run = await Run(model).to_end()

    assert "task" in declared(model.requests[0])
    assert "general-purpose" in str(model.requests[0].config.system_instruction)
    assert run.results[0]["status"] == "success"


@pytest.mark.parametrize(
    "options", [{"delegation": None}, {"tools": [Delegating()]}, {"built_in_tools": ["ls"]}]
)
def test_delegation_is_switched_off_by_a_word_or_by_a_toolset_that_delegates(
    options: dict[str, Any],
) -> None:
    assert "task" in tool_names(made())
    assert "task" not in tool_names(made(**options))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("model", 3, "the name of a model, or a model of ADK, not 3"),
        ("instruction", 5, "a text, not 5"),
        ("tools", len, "a list, not <built-in function len>"),
        ("skills", "/skills", "a list, not '/skills'"),
        ("memory", "/AGENTS.md", "a list, not '/AGENTS.md'"),
        ("middleware", len, "a list, not"),
        ("built_in_tools", "ls", "a list, not 'ls'"),
        ("permissions", 3, "a list, not 3"),
        ("interrupt_on", "execute", "a mapping of tools to decisions, not 'execute'"),
        ("loops", 3, "a LoopPolicy, not 3"),
        ("summarization", 3, "a SummarizationConfig, not 3"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_a_sentence(
    option: str, value: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{option} has to be {words}"):
        create_deep_agent(**{"model": scripted([says("x")]), option: value})


@pytest.mark.parametrize(
    "servers",
    [McpServer(name="a", url="http://a"), "http://a", ["http://a"], [{"name": "a"}], None],
)
def test_mcp_tools_of_no_list_of_servers_are_refused_in_a_sentence(servers: Any) -> None:
    with pytest.raises(ValueError, match=r"^McpTools takes a list of servers, such as McpTools\("):
        McpTools(servers)


def test_subagents_without_delegation_are_refused() -> None:
    with pytest.raises(ValueError, match="delegation=None"):
        made(subagents=[SPEC], delegation=None)


def test_a_tool_of_ones_own_named_task_is_refused_with_the_way_out() -> None:
    async def task() -> None:
        """Do it."""

    with pytest.raises(ValueError, match="delegation=None leaves the built-in task out"):
        made(tools=[task])
    assert [
        isinstance(tool, FunctionTool)
        for tool in made(tools=[task], delegation=None).tools
        if tool_name(tool) == "task"
    ] == [True]


async def test_a_factory_of_files_with_a_shell_gives_the_agent_a_shell(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    model = recorder("p", [{"calls": [call("execute", command="cat a.txt")]}, says("done")])
    run = await Run(model, backend=lambda _: LocalShellBackend(tmp_path)).to_end()

    assert run.results[0]["output"] == "hello"
    assert str(tmp_path) in str(model.requests[0].config.system_instruction)


async def test_a_factory_of_files_without_a_shell_gives_none() -> None:
    model = recorder("p", [{"calls": [call("execute", command="true")]}, says("done")])
    run = await Run(model, backend=StateBackend).to_end()

    assert "read_file" in declared(model.requests[0])
    assert "execute" not in declared(model.requests[0])
    assert "no tool with that name" in str(run.results[0])


async def test_what_a_factory_returns_may_depend_on_the_session(tmp_path: Path) -> None:
    def files(state: Any) -> Any:
        return LocalShellBackend(tmp_path) if state.get("todos") else StateBackend(state)

    plan = call("write_todos", todos=[{"content": "x", "status": "in_progress"}])
    model = recorder("p", [{"calls": [plan]}, says("done")])
    await Run(model, backend=files).to_end()

    assert ["execute" in declared(request) for request in model.requests] == [False, True]


SKILL = "---\nname: post\ndescription: Writes a post.\n---\n"


@pytest.mark.parametrize("make", [FilesystemBackend, DirectoryBackend, LocalShellBackend])
@pytest.mark.parametrize("form", [str, Path, "{}/".format])
async def test_relative_knowledge_is_below_the_root_of_the_agents_files(
    make: Any, form: Any, tmp_path: Path
) -> None:
    (tmp_path / "skills" / "post").mkdir(parents=True)
    (tmp_path / "skills" / "post" / "SKILL.md").write_text(SKILL)
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    backend = make(form(tmp_path))
    heard = await instructions(backend=backend, memory=["./AGENTS.md"], skills=["./skills/"])

    root = backend.search_root.rstrip("/")
    assert f'<memory_file path="{root}/AGENTS.md">\nUse tabs.' in heard[0]
    assert f"- post: Writes a post. ({root}/skills/post/SKILL.md)" in heard[0]


async def test_relative_knowledge_of_a_factory_is_below_what_it_returns(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    heard = await instructions(backend=lambda _: DirectoryBackend(tmp_path), memory=["AGENTS.md"])

    assert "Use tabs." in heard[0]


async def test_a_file_system_is_seen_from_its_root_and_not_left(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in" / "link").symlink_to("../secret")
    looks = [call("ls", path="/"), call("read_file", file_path="/link")]
    model = recorder("p", [{"calls": looks}, says("done")])
    listed, read = (await Run(model, backend=FilesystemBackend(tmp_path / "in")).to_end()).results

    assert [entry["path"] for entry in listed["entries"]] == [
        "/conversation_history",
        "/large_tool_results",
        "/link",
        "/task_results",
    ]
    assert read["status"] == "error"


def test_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="root_dir must be an existing directory"):
        FilesystemBackend(tmp_path / "nowhere")


async def test_files_may_be_in_a_dictionary() -> None:
    state: dict[str, Any] = {"files": {"/old": {"content": ["a", "b"]}}}
    files = StateBackend(state)
    await files.write_bytes("/new", b"x")

    assert state["file:/new"]["content"] == "x"
    assert await files.read_bytes("/old", 9) == b"a\nb"
    assert [entry.path for entry in await files.list("/")] == ["/new", "/old"]
