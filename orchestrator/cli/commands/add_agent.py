"""`agents add`: the definition of a coding agent, and its image."""

from __future__ import annotations

from typing import Annotated

import typer

from ...configuration.agent_definitions import load_agent_definition
from ...configuration.coding_agents import CODING_AGENTS
from ...spelling import did_you_mean
from ..terminal import output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.options import AsJson
from .images import run_program
from .new_agent import own_agents, write_definition


def add(
    name: Annotated[
        str, typer.Argument(metavar="AGENT", help="opencode, gemini-cli, codex or claude-code.")
    ],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a definition that exists.")
    ] = False,
    no_image: Annotated[
        bool, typer.Option("--no-image", help="Write the definition only.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a coding agent: write its commented definition, build its image; print the path.

    The agent is a program from npm that runs in the sandbox of each of its jobs. Its definition
    goes into the folder of your agents: FANOUT_AGENTS_DIR, else agents/ next to config.toml. Your
    own pip and npm fetch Node and the agent's package, so your registries apply.

    The agent needs a key of its model's API, which stays outside of the sandbox: FANOUT_SECRETS.
    Subscriptions that need a login do not work.
    """
    agent = CODING_AGENTS.get(name)
    if agent is None:
        raise UsageProblem(
            f"There is no coding agent {name!r}.{did_you_mean(name, CODING_AGENTS)} There are: "
            f"{', '.join(CODING_AGENTS)}. `fanout agents new` makes one of any other program."
        )
    path = own_agents() / f"{agent.name}.yaml"
    try:
        write_definition(path, agent.definition.read_text("utf-8"), replace=force)
    except FileExistsError:
        raise UsageProblem(
            f"{path} exists: edit it, or replace it with --force. Its image alone: "
            f"fanout images build {agent.name}"
        ) from None
    made = load_agent_definition(path)
    failed = 0 if no_image else run_program(["build", agent.name], quiet=True)
    if as_json:
        output.document(
            {
                "agent": made.name,
                "path": str(path),
                "image": made.image,
                "image_built": not no_image and not failed,
                "secrets": [one.secret for one in made.credentials],
            }
        )
    else:
        output.payload(str(path))
    if failed:
        output.notice(
            "The definition is written, the image is not built. Later: "
            f"fanout images build {agent.name}"
        )
        raise typer.Exit(failed)
    names = " and ".join(f"FANOUT_SECRETS__{one.secret}" for one in made.credentials)
    output.notice(
        f"{agent.title} {agent.version}. Set {names} for the worker, then: fanout doctor; "
        f'fanout run "YOUR GOAL" --agent {made.name}'
    )
    raise typer.Exit(ExitCode.DONE)
