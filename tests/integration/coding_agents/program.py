"""The scripted coding agent of tests as agent definitions, and tasks that are its scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.forked import REPOSITORY

PROGRAM = REPOSITORY / "tests" / "acp_agent.py"


def coding_agent(name: str, *options: str, **more: Any) -> str:
    """Return the definition of an agent; its program is an argument, so any image has it."""
    command = ["python3", "-c", Path(PROGRAM).read_text(), *options]
    definition = {"name": name, "description": "A coding agent.", "acp": {"command": command}}
    return yaml.safe_dump({**definition, **more})


def task(*turns: list[dict[str, Any]], told: list[dict[str, Any]] | None = None) -> str:
    """Return a task: the steps of each prompt, and those of a session that is told of others."""
    script: dict[str, Any] = {"turns": turns}
    if told is not None:
        script["told"] = told
    return f"Do this: @@{json.dumps(script)}@@"
