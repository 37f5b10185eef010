"""`script`: list the bundled scripts, and check a script before it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ...configuration.agent_definitions import AgentDefinitions
from ...configuration.settings import load_settings
from ..terminal import output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.options import AsJson
from ..terminal.session import usable_agents
from .script_arguments import ScriptFile, bundled_scripts, parse_inputs, read_script

MAX_REPLIES_BYTES = 4 * 1024**2
"""The largest file of replies: YAML of this size takes seconds to read."""

ScriptArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A script, or the name of a bundled one.")
]
ScriptOption = Annotated[
    str | None,
    typer.Option(
        "--script",
        metavar="FILE",
        help="Run this script, which calls agents, instead of an agent on GOAL: a file, or the name "
        "of a bundled one (`fanout script ls`).",
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=VALUE",
        help="A value of the script's `inputs`: JSON, or else the text itself; NAME=@FILE gives "
        "what a file holds. Repeat for several.",
    ),
]
ReuseOption = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="Start no job for a call of the script that an earlier script of yours has made "
        "with the same arguments, agent, model and files: it has the result of that one.",
    ),
]


def ls(*, as_json: AsJson = False) -> None:
    """List the bundled scripts, with the inputs that they take."""
    found = bundled_scripts()
    if as_json:
        output.document({"scripts": [_document(one) for one in found]})
        return
    for script in found:
        output.payload(f"{script.name}  {script.title}")
        for name, text in script.inputs.items():
            output.payload(f"  {name}: {text}")
    output.notice("\nTo run one: fanout run --script NAME --input NAME=VALUE")


def _document(script: ScriptFile) -> dict[str, Any]:
    return {
        "name": script.name,
        "about": script.title,
        "inputs": script.inputs,
        "path": str(script.path),
        "replies": None if script.replies is None else str(script.replies),
    }


def check(
    script: ScriptArgument,
    *,
    replies: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Run the script dry, with the replies of this YAML file; no agent runs.",
        ),
    ] = None,
    inputs: InputOption = None,
    as_json: AsJson = False,
) -> None:
    """Check the syntax, types and agents' names of a script.

    Without --replies it is run up to its first call. Each fault is one line, with the line of the
    script; exit code 2 if there is one.
    """
    found, given = read_script(script), parse_inputs(inputs or ())
    answers = None if replies is None else read_replies(replies)
    agents = usable_agents(load_settings())
    faults = faults_of(found, agents, inputs=given, replies=answers)
    missing = [name for fault in faults if (name := found.missing_input(fault, given))]
    if missing and answers is None:  # the types of all of it were checked
        faults = []
    if as_json:
        output.document({"script": str(found.path), "faults": faults})
    elif not faults:
        more = f"; to run it up to its first call: --input {missing[0]}=VALUE" if missing else ""
        output.payload(f"{found.path}: no faults found{more}")
    else:
        output.notice("\n".join(f"{found.path}: {fault}" for fault in faults))
    raise typer.Exit(ExitCode.USAGE if faults else ExitCode.DONE)


def faults_of(
    script: ScriptFile,
    agents: AgentDefinitions,
    *,
    inputs: Mapping[str, Any],
    replies: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Return what is wrong with a script, a line each.

    Args:
        script: The script.
        agents: The agents of the installation, all of which the script of a run may call.
        inputs: The values of its `inputs`.
        replies: See `check_script`.
    """
    from ...scripts.check import check_script  # noqa: PLC0415 - only here

    known = {one.name: one.description for one in agents.values()}
    return asyncio.run(check_script(script.source, known, inputs=inputs, replies=replies))


def refuse_faults(script: ScriptFile, agents: AgentDefinitions, inputs: Mapping[str, Any]) -> None:
    """Refuse a script with faults, before anything is started for it.

    Raises:
        UsageProblem: Lists the faults with their lines.
    """
    faults = faults_of(script, agents, inputs=inputs)
    missing = [name for fault in faults if (name := script.missing_input(fault, inputs))]
    if missing:
        about = script.inputs.get(missing[0])
        raise UsageProblem(
            f"{script.path} needs the input {missing[0]}{f' ({about})' if about else ''}: "
            f"--input {missing[0]}=VALUE"
        )
    if faults:
        raise UsageProblem("\n".join(f"{script.path}: {fault}" for fault in faults))


def read_replies(path: Path) -> list[dict[str, Any]]:
    """Return the replies of a dry run.

    Raises:
        UsageProblem: The file cannot be read, or is not a list of replies.
    """
    try:
        if path.stat().st_size > MAX_REPLIES_BYTES:
            raise UsageProblem(f"{path} is too large: replies have 4 MiB at the most.")
        read = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise UsageProblem(f"{path}{where} is not YAML.") from None
    if not isinstance(read, list):
        raise UsageProblem(
            f"{path} is not a list of replies, such as - {{match: 'Review *', reply: …}}"
        )
    for number, one in enumerate(read, 1):
        if (
            not isinstance(one, dict)
            or "reply" not in one
            or one.keys() - {"call", "match", "reply"}
        ):
            raise UsageProblem(f"{path}: reply {number} takes call, match and reply.")
    return read
