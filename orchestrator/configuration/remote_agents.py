"""The remote agent of an agent definition: its key `a2a`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fanout.orchestrator.configuration.credentials import HeaderCredential, usable_url
from fanout.orchestrator.jobs.spec import WireModel

DEFAULT_MAX_BYTES = 16 * 1024**2
"""A hundred source files of usual size, or a few images; a worker holds it in memory, as Base64
too."""
MOST_BYTES = 256 * 1024**2
"""Of `max_bytes`: a worker process runs several jobs, and each may hold four times as much."""
DEFAULT_TIMEOUT_SECONDS = 60.0
"""Of a request: most gateways end one that is silent for so long."""
MAX_TIMEOUT_SECONDS = 3600.0
"""Work that takes longer is watched by several requests."""

WITHOUT_MODEL = frozenset(
    {"name", "description", "a2a", "limits", "max_running", "output_schema", "image"}
    | {"verify", "max_reworks", "network", "credentials", "include"}
)
"""The keys of a definition that mean something for a remote agent. It has its own instruction,
model and tools; what is left is about the job, and the sandbox in which its files are verified."""


def _usable_pattern(pattern: str) -> str:
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"{pattern!r} is not a pattern of paths relative to the workspace")
    return pattern


FilePattern = Annotated[str, AfterValidator(_usable_pattern)]


class RemoteAgentDefinition(WireModel):
    """An agent of another service that speaks A2A (1.0, or 0.3 by JSON-RPC and HTTP+JSON)."""

    url: Annotated[str, AfterValidator(usable_url)]
    """Of its agent card (it ends with `.json`), or the address below which the card is at
    `/.well-known/agent-card.json`. The agent is called at this origin only."""
    credentials: tuple[HeaderCredential, ...] = ()
    """Headers of each request, made of secrets that are only named here."""
    files: Literal["none", "all"] | tuple[FilePattern, ...] = "none"
    """Which files of the job are sent with its task: those that match one of the patterns. A file
    of a type that the card does not name is not sent."""
    max_bytes: int = Field(default=DEFAULT_MAX_BYTES, ge=1024, le=MOST_BYTES)
    """Of the files that are sent, and of each answer."""
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0, le=MAX_TIMEOUT_SECONDS)
    """How long a request may be silent. Work may take as long as the job's time."""
