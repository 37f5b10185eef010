"""What every tool promises on every backend; the other suites here say it tool by tool."""

from typing import Any

import pytest

from fanout.orchestrator.deep_agent.tools.filesystem import FilesystemTools
from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("read_file", {}, "file_path"),
        ("read_file", {"file_path": "/a", "offset": "many"}, "offset"),
        ("read_file", {"file_path": "/a", "lines": 3}, "lines"),
        ("read_file", {"file_path": 7}, "file_path"),
        ("write_file", {"file_path": "/a"}, "content"),
        ("edit_file", {"file_path": "/a", "old_string": "a"}, "new_string"),
    ],
)
async def test_wrong_arguments_are_named_to_the_model(
    tools: Tools, name: str, args: dict[str, Any], named: str
) -> None:
    message = await tools.error(name, **args)
    assert named in message
    assert "It takes:" in message


async def test_the_failure_of_a_backend_is_not_told_as_the_agents_mistake(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    async def die(*_: Any, **__: Any) -> Any:
        raise Died

    with monkeypatch.context() as patch:
        for method in ("stat", "list", "read_bytes", "write_bytes", "delete", "walk", "grep"):
            patch.setattr(tools.backend, method, die)
        for name, args in (
            ("ls", {"path": tools.root}),
            ("read_file", {"file_path": tools.at("a")}),
            ("write_file", {"file_path": tools.at("a"), "content": ""}),
            ("delete_file", {"file_path": tools.at("a")}),
            ("glob", {"pattern": "*"}),
            ("grep", {"pattern": "x"}),
        ):
            with pytest.raises(Died):
                await tools(name, **args)


async def test_the_model_is_shown_s2s_tools_with_their_arguments(state: Tools) -> None:
    shown = FilesystemTools(lambda _: state.backend).tools()
    declared = {tool.name: tool._get_declaration() for tool in shown}
    assert {
        name: list(found.parameters_json_schema["properties"]) for name, found in declared.items()
    } == {
        "ls": ["path", "offset", "limit"],
        "read_file": ["file_path", "offset", "limit"],
        "write_file": ["file_path", "content", "overwrite"],
        "edit_file": ["file_path", "old_string", "new_string", "replace_all"],
        "delete_file": ["file_path"],
        "glob": ["pattern", "path", "offset", "limit"],
        "grep": ["pattern", "path", "glob", "output_mode", "offset", "limit"],
    }
    assert {name: found.parameters_json_schema["required"] for name, found in declared.items()} == {
        "ls": ["path"],
        "read_file": ["file_path"],
        "write_file": ["file_path", "content"],
        "edit_file": ["file_path", "old_string", "new_string"],
        "delete_file": ["file_path"],
        "glob": ["pattern"],
        "grep": ["pattern"],
    }
    defaults = {
        (name, argument): detail["default"]
        for name, found in declared.items()
        for argument, detail in found.parameters_json_schema["properties"].items()
        if "default" in detail
    }
    assert defaults == {
        ("read_file", "offset"): 0,
        ("read_file", "limit"): 2000,
        ("write_file", "overwrite"): False,
        ("edit_file", "replace_all"): False,
        ("ls", "offset"): 0,
        ("ls", "limit"): 500,
        ("glob", "path"): "/",
        ("glob", "offset"): 0,
        ("glob", "limit"): 500,
        ("grep", "path"): None,
        ("grep", "glob"): None,
        ("grep", "output_mode"): "files_with_matches",
        ("grep", "offset"): 0,
        ("grep", "limit"): 10_000,
    }
