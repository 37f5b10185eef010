"""The files that `fanout init` writes: the configuration, the key, an example agent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from dotenv import dotenv_values, set_key

from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.configuration.configuration_file import ConfigurationFile
from fanout.orchestrator.private_files import make_private_folder

EXAMPLE_AGENT = "explainer"

_OWNER_ONLY = 0o600

_CONFIGURATION = """\
# Written by `fanout init`. `fanout config` prints all settings and where each comes from.

# The model of agents whose definition names none.
model = {model}

[sandbox]
# docker isolates what agents run; local runs it as you, isolated by nothing.
provider = {sandbox}
"""

_AGENT = f"""\
# An agent of your own: fanout run "YOUR QUESTION" --agent {EXAMPLE_AGENT}
# The file's name is its name. Change it, or copy it and begin another one; `fanout agents` lists all.
name: {EXAMPLE_AGENT}
description: Explains what a folder is for and how its parts work together. Changes nothing.
# What it may use; leave the line out for all tools.
tools: [ls, read_file, glob, grep]
instruction: |
  You explain code to somebody who sees it for the first time.

  - Look at the files before you answer, and name the file for each thing that you say.
  - Say what it is for first, then how its parts work together.
  - Keep it short: a few sentences, unless you are asked for more.
limits: {{timeout_seconds: 600}}
"""


class Answers(NamedTuple):
    """What a person has chosen."""

    model: str
    sandbox: str
    key_name: str | None = None
    """The variable of the model's key; None: it needs none."""
    key: str | None = None
    """Its value; None: it is in the environment or in the `.env` already, or it follows later."""
    address_name: str | None = None
    """The variable of the address of the model's server; None: the service's own."""
    address: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """What the `.env` gets."""
        found = {self.key_name: self.key, self.address_name: self.address}
        return {name: value for name, value in found.items() if name and value}


def agent_path(place: ConfigurationFile) -> Path:
    """Return where the example agent is written."""
    return place.agents / f"{EXAMPLE_AGENT}.yaml"


def write_files(place: ConfigurationFile, answers: Answers, *, replace: bool) -> list[Path]:
    """Write what the answers need; return the files that are written.

    Key and address are alone in a file that only its owner can read. The example agent is never
    replaced.

    Args:
        place: Where the configuration is.
        answers: What goes into it.
        replace: Whether an existing configuration is replaced.

    Raises:
        UsageProblem: A file cannot be written.
    """
    written = []
    text = _CONFIGURATION.format(
        model=json.dumps(answers.model, ensure_ascii=False), sandbox=json.dumps(answers.sandbox)
    )
    agent = agent_path(place)
    try:
        if not place.path.parent.exists():
            make_private_folder(place.path.parent)
        for name, value in answers.variables.items():
            _keep_variable(place.env, name, value)
        if answers.variables:
            written.append(place.env)
        if replace or not place.path.exists():
            place.path.write_text(text, encoding="utf-8")
            written.append(place.path)
        if not agent.exists():
            agent.parent.mkdir(exist_ok=True)
            agent.write_text(_AGENT, encoding="utf-8")
            written.append(agent)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        file = getattr(error, "filename", None) or place.path.parent
        raise UsageProblem(f"{file} cannot be written: {reason}.") from None
    return written


def has_key(place: ConfigurationFile, name: str) -> bool:
    """Return whether the `.env` or the environment has a key already, under any of its names."""
    names = (name, "GEMINI_API_KEY") if name == "GOOGLE_API_KEY" else (name,)
    if any(map(os.environ.get, names)):
        return True
    try:
        kept = dotenv_values(place.env, interpolate=False)
        return any(map(kept.get, names))
    except (OSError, ValueError):
        return False


def usable_key(text: str) -> str:
    """Return a key as it was typed or piped, without the white space around it.

    Raises:
        UsageProblem: It cannot be a key; the text does not contain it.
    """
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageProblem("That is no key: a key is one line of letters, digits and signs.")
    return key


def _keep_variable(file: Path, name: str, value: str) -> None:
    """Set a variable in the `.env`; its other lines stay as they are."""
    if file.exists():
        file.chmod(_OWNER_ONLY)  # before it holds the key; the rewritten file has the same mode
    set_key(file, name, value, follow_symlinks=True)
    file.chmod(_OWNER_ONLY)
