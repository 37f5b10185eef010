"""`approvals`, `approve`, `reject`: the calls of jobs that wait for a person."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...approvals import Decision
from ...jobs.approvals import Approval
from ...valid_text import escape_hidden, not_utf_8
from ..terminal import formatting, output
from ..terminal.exit_codes import UsageProblem
from ..terminal.options import AsJson
from ..terminal.session import open_client, resolve_approval

ARGUMENT_CHARACTERS = 200
"""The longest part of a call's arguments in a table: one line. `--json` prints them in full."""

ApprovalArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="An approval id, or the id of a job with one open approval; unique prefixes suffice.",
    ),
]
MessageOption = Annotated[
    str,
    typer.Option("--message", "-m", metavar="TEXT", help="A message to the agent; default: none."),
]


def approvals(as_json: AsJson = False) -> None:
    """List the tool calls that wait for a person's decision."""
    asyncio.run(_approvals(as_json=as_json))


async def _approvals(*, as_json: bool) -> None:
    async with open_client() as client:
        waiting = await client.approvals()
    if as_json:
        output.document({"approvals": [approval.model_dump(mode="json") for approval in waiting]})
        return
    if not waiting:
        output.notice("Nothing waits for an approval.")
        return
    _print_table(waiting)


def _print_table(waiting: Sequence[Approval]) -> None:
    now = time.time()
    rows = [
        (
            formatting.short_approval(approval.id),
            formatting.short_id(approval.job_id),
            output.one_line(approval.agent, 40),
            output.one_line(approval.tool, 60),
            formatting.between(approval.requested_at or now, now),
            output.one_line(
                escape_hidden(json.dumps(approval.arguments, ensure_ascii=False)),
                ARGUMENT_CHARACTERS,
            ),
        )
        for approval in waiting
    ]
    output.table(("ID", "JOB", "AGENT", "TOOL", "SINCE", "ARGUMENTS"), rows)


def approve(
    approval: ApprovalArgument,
    *,
    arguments: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE",
            help="Run the call with these arguments instead; all of them must be given.",
        ),
    ] = None,
    respond: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Do not run the call; return this text to the agent as its result."
        ),
    ] = None,
    message: MessageOption = "",
    as_json: AsJson = False,
) -> None:
    """Approve a waiting tool call, as it is or with other arguments."""
    if arguments is not None and respond is not None:
        raise UsageProblem("Specify either --arguments or --respond, not both.")
    if arguments is not None:
        decision: Decision = "edit"
    else:
        decision = "approve" if respond is None else "respond"
    given = {"arguments": None if arguments is None else _arguments(arguments), "response": respond}
    asyncio.run(_answer(approval, decision, as_json=as_json, message=message, **given))


def reject(
    approval: ApprovalArgument, message: MessageOption = "", as_json: AsJson = False
) -> None:
    """Reject a waiting tool call; its agent continues without it."""
    asyncio.run(_answer(approval, "reject", as_json=as_json, message=message))


async def _answer(prefix: str, decision: Decision, *, as_json: bool, **given: Any) -> None:
    async with open_client() as client:
        approval_id = await resolve_approval(client, prefix)
        job_id = await client.answer(approval_id, decision, **given)
    if as_json:
        output.document(
            {
                "id": approval_id,
                "approval_id": approval_id,
                "job_id": job_id,
                "decision": decision,
            }
        )
    else:
        shown = formatting.short_approval(approval_id)
        output.payload(f"{shown}  {decision}  (job {formatting.short_id(job_id)})")


def _arguments(text: str) -> dict[str, Any]:
    """Parse arguments from JSON, or from the file named after `@`."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageProblem(f"--arguments {text!r} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise UsageProblem(f"--arguments {text!r}: {not_utf_8(error)}.") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"--arguments is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UsageProblem('--arguments is not a JSON object; it has the form {"command": "ls"}.')
    return value
