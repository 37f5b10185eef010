"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator.cli.terminal.exit_codes import UsageProblem

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON: one document, or a line per event.")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A job's id, or its beginning while unique.")
]
JobArguments = Annotated[
    list[str], typer.Argument(metavar="ID", help="Job ids, or their beginnings.")
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="May be given more than once."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up waiting after this time."),
]


def parse_labels(texts: Sequence[str] | None) -> dict[str, str]:
    """`key=value` texts as a mapping.

    Raises:
        UsageProblem: one has no `=` or no key.
    """
    labels: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageProblem(f"--label is {text!r}; it has the form KEY=VALUE.")
        labels[key] = value
    return labels
