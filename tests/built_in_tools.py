"""One call of each built-in tool of an agent with files and a shell, and what it gives."""

from __future__ import annotations

from typing import Any

from tests.integration.scripts import call


def one_call_each(root: str) -> dict[str, Any]:
    """One call of each built-in tool, on files at `root`."""
    return {
        "write_file": call("write_file", file_path=f"{root}/a.txt", content="one\n"),
        "edit_file": call(
            "edit_file", file_path=f"{root}/a.txt", old_string="one", new_string="two"
        ),
        "read_file": call("read_file", file_path=f"{root}/a.txt"),
        "ls": call("ls", path=root or "/"),
        "glob": call("glob", pattern="*.txt"),
        "grep": call("grep", pattern="two"),
        "execute": call("execute", command="echo two"),
        "delete_file": call("delete_file", file_path=f"{root}/a.txt"),
        "write_todos": call("write_todos", todos=[{"content": "a", "status": "in_progress"}]),
        "read_todos": call("read_todos"),
    }


def failed(results: dict[str, dict[str, Any]]) -> list[str]:
    """The tools that did not do what they are for."""
    texts = {
        "read_file": "two",
        "ls": "a.txt",
        "glob": "a.txt",
        "grep": "a.txt",
        "execute": "two",
        "read_todos": "in_progress",
        "much": "/large_tool_results/",
    }
    return [
        f"{tool}: {result}"
        for tool, result in results.items()
        if result.get("status") == "error" or texts.get(tool, "") not in str(result)
    ]
