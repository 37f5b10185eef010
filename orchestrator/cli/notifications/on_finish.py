"""`--on-finish`: a command that is run when this command has seen the end of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from fanout.orchestrator.cli.terminal.live.waiting import waiting
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.server.notifications.hook import DESKTOP, Hook
from fanout.orchestrator.server.notifications.messages import end_of

OnFinishOption = Annotated[
    str | None,
    typer.Option(
        "--on-finish",
        metavar="COMMAND",
        help="When the run has ended, run this shell command, which has FANOUT_JOB_ID, "
        f"FANOUT_JOB_STATE and more in its environment; `{DESKTOP}`: a desktop notification. For "
        "all runs, also detached ones: FANOUT_NOTIFICATIONS__ON_FINISH.",
    ),
]


async def run_on_finish(command: str | None, client: JobClient, job_id: str, state: str) -> None:
    """Run the command; its failure is a line in the log, and changes no exit code.

    Args:
        command: The option's value; None: nothing is run.
        client: The connected client.
        job_id: The job that has ended.
        state: The state that it has reached.
    """
    if command is None:
        return
    with waiting("running the command of --on-finish"):
        await Hook(command).run(await end_of(client, job_id, state))
