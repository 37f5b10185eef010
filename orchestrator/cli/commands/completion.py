"""`completion`: the script with which a shell completes fanout's commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # not declared

from ..app import COMPLETION_VARIABLE
from ..terminal import output


class ShellName(StrEnum):
    """The shells with completion for fanout."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[ShellName, typer.Argument(help="The shell to print it for.")],
) -> None:
    """Print the script with which a shell completes commands.

    bash, in ~/.bashrc: eval "$(fanout completion bash)"

    zsh, in ~/.zshrc, after compinit: eval "$(fanout completion zsh)"

    fish, once: fanout completion fish > ~/.config/fish/completions/fanout.fish
    """
    output.payload(
        get_completion_script(
            prog_name="fanout", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )
    )
