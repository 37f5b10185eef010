"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from .exit_codes import UsageProblem

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON: one document, or one line per event in a stream."),
]


class SandboxKind(StrEnum):
    """The sandbox in which jobs run their commands."""

    DOCKER = "docker"
    LOCAL = "local"


SandboxOption = Annotated[
    SandboxKind | None,
    typer.Option(
        "--sandbox",
        help="docker isolates the jobs' commands, local runs them as you, without isolation; "
        "default: FANOUT_SANDBOX__PROVIDER, else docker.",
    ),
]
JobArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A job id, or its beginning or its end, if unique.")
]
JobArguments = Annotated[
    list[str], typer.Argument(metavar="ID", help="Job ids, or their beginnings or ends, if unique.")
]
JobOrLastRun = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID]",
        help="A job id, or its beginning or its end, if unique. Default: the last run of this "
        "folder.",
    ),
]
JobsOrLastRun = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...",
        help="Job ids, or their beginnings or ends, if unique. Default: the last run of this "
        "folder.",
    ),
]
AnyJobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...",
        help="Job ids, or their beginnings or ends, if unique; or use --label. Default: the last "
        "run of this folder.",
    ),
]
WholeTree = Annotated[
    bool, typer.Option("--tree", help="All jobs that were submitted with each ID.")
]
ChosenLabel = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="The jobs with this label, with --tree those of the tree; repeat to require several.",
    ),
]
BranchOption = Annotated[
    str | None,
    typer.Option(
        "--branch",
        metavar="NAME",
        help="Leave the files unchanged, and create this Git branch with a commit for each job that "
        "changed something.",
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label of the job; repeat for several."),
]
LabelFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        help="List only jobs with this label; repeat to require several.",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        help="Stop waiting after this time; the jobs continue. Default: no limit.",
    ),
]


def chosen_sandbox(sandbox: SandboxKind | None) -> dict[str, Any]:
    """Return the option --sandbox as settings that override others."""
    return {} if sandbox is None else {"sandbox": {"provider": str(sandbox)}}


def parse_labels(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse `KEY=VALUE` texts into a mapping.

    Raises:
        UsageProblem: a text has no `=` or no key.
    """
    labels: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageProblem(f"--label is {text!r}; it has the form KEY=VALUE.")
        labels[key] = value
    return labels
