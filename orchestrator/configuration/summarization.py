"""When an agent's long conversation is summarized: the key `summarization` of a definition."""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fanout.orchestrator.jobs.spec import WireModel


def _possible(size: tuple[str, float]) -> tuple[str, float]:
    kind, amount = size
    if amount <= 0 or (kind == "fraction" and amount > 1):
        raise ValueError(f"there is no {kind} {amount:g}")
    return size


def _normalised(path: str) -> str:
    folder = path.rstrip("/")
    if not folder.startswith("/") or posixpath.normpath(folder) != folder or folder[:2] == "//":
        raise ValueError(f"{path} is not a normalised absolute path of a folder below /")
    return folder


FolderPath = Annotated[str, AfterValidator(_normalised)]
"""The absolute path of a folder in the agent's files."""

Size = Annotated[tuple[Literal["fraction", "tokens", "messages"], float], AfterValidator(_possible)]
"""A fraction of the model's window, a number of tokens or of messages: `[fraction, 0.85]`."""


class SummarizationDefinition(WireModel):
    """The settings of summarization; unset ones have the deep agent's default."""

    trigger: Size | None = None
    """The size at which the older part of a conversation is replaced by a summary."""
    keep: Size | None = None
    """The newest part, which is not summarized."""
    model: str | None = None
    """The model that writes the summary; None: the agent's own model."""
    window_tokens: int | None = Field(default=None, gt=0)
    """The window of the agent's model, for models of unknown size."""
    history_path_prefix: FolderPath | None = None
    """The folder in which the file tools find the messages that summaries replaced."""

    def settings(self) -> dict[str, Any]:
        """Return the set values as arguments of the deep agent's configuration."""
        return self.model_dump(exclude_none=True)
