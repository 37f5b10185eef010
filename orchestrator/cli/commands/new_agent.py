"""`agents new`: writes a commented definition of a new agent, which works at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from ...configuration.agent_definitions import (
    SHIPPED_AGENTS,
    AgentDefinition,
    load_agent_definition,
)
from ...configuration.configuration_file import default_agents
from ...configuration.settings import load_settings
from ...private_files import make_private_folder
from ..terminal import output
from ..terminal.exit_codes import UsageProblem
from ..terminal.options import AsJson

MAX_NAME_CHARACTERS = 63
"""The longest name of an agent in a definition."""
_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME_CHARACTERS - 1}}}")

_DEFINITION = """\
# Your own agent. Try it:  fanout run "YOUR GOAL" --agent {name}
# A change of this file applies to the next job. All keys: docs/reference/agent-definition.md

name: {name}

# The coordinator chooses an agent by this.
description: {description}

# Who it is and how it works. It gets each task with the files, and knows nothing else.
instruction: |
  You work on one task in /workspace, a copy of the user's folder.

  - Read what the task is about before you change anything.
  - Change what the task asks for, and nothing else.
  - Run the project's tests after a change, if there are any.
  - End with what you changed and why, in a few sentences.

# Each of these is optional; remove the "# " in front of one to use it.
# model: gemini-2.5-flash            # default: the model of the run, else that of the configuration
# tools: [ls, read_file, glob, grep] # default: all built-in ones. These four change nothing.
#                                    # web_search, web_fetch and your own only if they are named
# subagents: [researcher, tester]    # agents that it may call; `fanout agents` lists all
# verify: make test                  # has to exit with 0 before a job succeeds
# memory: [/workspace/AGENTS.md]     # files that are added to the instruction
# limits: {{timeout_seconds: 900, max_model_calls: 50}}
# network: [pypi.org]                # hosts that its commands may reach; default: none
# interrupt_on: {{execute: true}}      # calls that wait for your approval
"""


def new(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits, - and _.")],
    *,
    description: Annotated[
        str, typer.Option(help="What the agent is for, in one sentence.")
    ] = "Works on one task on its own, and reports what it has done.",
    as_json: AsJson = False,
) -> None:
    """Write a commented definition of an agent, which works at once; print its path.

    It goes into the folder of your agents: FANOUT_AGENTS_DIR, else agents/ next to config.toml.
    A file that exists is never changed.
    """
    folder = own_agents()
    path = folder / f"{_usable(name, folder)}.yaml"
    if not description.strip():
        raise UsageProblem(
            "--description is empty: describe in one sentence what the agent is for."
        )
    text = _DEFINITION.format(name=name, description=json.dumps(description, ensure_ascii=False))
    try:
        write_definition(path, text)
    except FileExistsError:
        raise UsageProblem(f"{path} exists: edit it, or choose another name.") from None
    made: AgentDefinition = load_agent_definition(path)
    if as_json:
        output.document({"agent": made.name, "path": str(path)})
        return
    output.payload(str(path))
    output.notice(f'Edit it, then: fanout run "YOUR GOAL" --agent {made.name}')


def write_definition(path: Path, text: str, *, replace: bool = False) -> None:
    """Write the file of a definition, with its folder.

    Raises:
        FileExistsError: There is one, and it is not to be replaced.
        UsageProblem: It cannot be written.
    """
    folder = path.parent
    try:
        if not folder.parent.exists():
            make_private_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise
    except OSError as error:
        raise UsageProblem(f"{path} cannot be written: {error.strerror}.") from None


def own_agents() -> Path:
    """Return the folder of a person's agents.

    Raises:
        UsageProblem: There is none.
    """
    folder = load_settings().agents_dir or default_agents()
    if folder is None:
        raise UsageProblem("There is no folder for agents: set HOME or FANOUT_AGENTS_DIR.")
    return folder


def _usable(name: str, folder: Path) -> str:
    """Return the name of a new agent.

    Raises:
        UsageProblem: It cannot be the name of an agent, or there is an agent with that name.
    """
    if not _NAME.fullmatch(name):
        nearest = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:MAX_NAME_CHARACTERS]
        hint = f" Try: fanout agents new {nearest}" if nearest else ""
        raise UsageProblem(
            f"{name!r} is not a valid agent name: 1 to {MAX_NAME_CHARACTERS} lower-case letters, "
            f"digits, - and _.{hint}"
        )
    if (SHIPPED_AGENTS / f"{name}.yaml").exists():
        raise UsageProblem(
            f"fanout has an agent {name} already, which your file would replace: choose another "
            f"name, or copy {SHIPPED_AGENTS / name}.yaml into {folder}."
        )
    return name
