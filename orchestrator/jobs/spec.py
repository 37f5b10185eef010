"""What a parent asks for: a job's specification and its limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator
from ulid import ULID

from orchestrator.approvals import InterruptOn

GIB = 1024**3

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""A job's id: sortable when fanout makes it, and safe as a key, a file name and a label."""

AgentName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""The name of an agent definition."""

BlobId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""The SHA-256 of a blob's content, in hexadecimal."""


class WireModel(BaseModel):
    """The base of everything that crosses a boundary: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def new_job_id() -> str:
    """A fresh id; later ids sort after earlier ones."""
    return str(ULID()).lower()


class Limits(WireModel):
    """What one job may use. None means "not set here": the next layer's value counts."""

    timeout_seconds: float | None = Field(default=None, gt=0)
    """Wall clock over all attempts' running time."""
    max_model_calls: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    """Input and output tokens together."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """At list prices; not enforced for a model whose price is not known."""
    max_tool_calls: int | None = Field(default=None, gt=0)
    """Calls of tools, whatever they answer."""
    cpus: float | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, ge=64 * 1024**2)
    pids: int | None = Field(default=None, ge=16)
    disk_bytes: int | None = Field(default=None, ge=1024**2)
    """What the job may add to its workspace."""
    network: Literal["none"] | tuple[str, ...] | None = None
    """`none`, or the host names that commands may reach."""

    def over(self, fallback: Limits) -> Limits:
        """These limits, with the unset ones taken from `fallback`."""
        return fallback.model_copy(update=self.model_dump(exclude_none=True))


class ModelRate(WireModel):
    """What one model may be asked per minute, over all workers and coordinators.

    None is no limit.
    """

    requests_per_minute: int | None = Field(default=None, gt=0)
    """Requests that reach the service, repeated ones too."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Input and output tokens together; a request larger than that goes alone."""

    def named(self) -> dict[str, int]:
        """What is limited, in a person's words."""
        found = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute}
        return {name: most for name, most in found.items() if most is not None}


class TreeBounds(WireModel):
    """How far a tree of jobs may grow by jobs that delegate."""

    max_depth: int = Field(default=3, ge=0, le=20)
    """A job at this depth has no children; a root's is 0. Each level adds a snapshot, a merge and a
    retelling: three take a plan, its parts and their checks."""
    max_children: int = Field(default=32, ge=1, le=1000)
    """Of one job, over its whole life: as many answers as its agent can still read."""
    max_tree_children: int = Field(default=1000, ge=1)
    """Of all jobs of a tree together, ended ones too: agents that delegate to their like grow by
    powers."""
    max_tree_model_calls: int | None = Field(default=None, gt=0)
    """Of all jobs of a tree together; each may be in the middle of one more when it is reached."""
    max_tree_tokens: int | None = Field(default=None, gt=0)
    """Input and output tokens of all jobs of a tree together; as above."""
    max_tree_cost_usd: float | None = Field(default=None, gt=0)
    """Of all jobs of a tree together, at list prices; as above."""


class JobSpec(WireModel):
    """One run of one agent on one task, as the parent asks for it.

    Equal ids are the same job: submitting twice is one job.
    """

    id: JobId = Field(default_factory=new_job_id)
    root_id: JobId = ""
    """The tree that the job belongs to; the job's own id when it has no parent."""
    parent_id: JobId | None = None
    depth: int = Field(default=0, ge=0)
    tenant: str = Field(default="default", min_length=1, max_length=64)
    agent: AgentName = "general-purpose"
    description: str = Field(min_length=1, max_length=200_000)
    context: str | None = Field(default=None, max_length=1_000_000)
    """Text from the parent that the sub-agent is given beside the description."""
    snapshot: BlobId | None = None
    """The workspace that the job starts from; None is an empty workspace."""
    output_schema: dict[str, JsonValue] | None = None
    model: str | None = None
    """Overrides the agent definition's model."""
    limits: Limits = Limits()
    interrupt_on: InterruptOn = Field(default_factory=dict)
    """The parent's approval policy, which binds beside the definition's own: for each tool the
    stricter."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher goes first within a tree."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    labels: dict[str, str] = Field(default_factory=dict)
    idempotency_key: str | None = None
    traceparent: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _root_is_itself(cls, data: Any) -> Any:
        """A job without a root is the root of its own tree."""
        if isinstance(data, dict) and not data.get("root_id"):
            job_id = data.get("id") or new_job_id()
            data = {**data, "id": job_id, "root_id": job_id}
        return data

    @model_validator(mode="after")
    def _child_has_depth(self) -> Self:
        if self.parent_id is None and self.depth:
            raise ValueError("a job without parent_id has depth 0")
        return self
