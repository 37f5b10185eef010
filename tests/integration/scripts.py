"""Scripted models for tests that run real workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def conversation(when: str, *replies: dict[str, Any]) -> dict[str, Any]:
    return {"when": when, "replies": list(replies)}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"calls": list(made)}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, **more}


DONE = says("Finished.\n\n## Summary\nDone as asked.")


def write_script(folder: Path, *conversations: dict[str, Any]) -> Path:
    path = folder / "script.yaml"
    path.write_text(yaml.safe_dump({"conversations": list(conversations)}))
    return path


def write_agents(folder: Path, definitions: Mapping[str, str]) -> Path:
    """Write the text of each agent's definition below its name; return the folder that has them."""
    agents = folder / "agents"
    agents.mkdir()
    for name, text in definitions.items():
        (agents / f"{name}.yaml").write_text(text)
    return agents


def shell(command: str) -> dict[str, Any]:
    return calls(call("execute", command=command))
