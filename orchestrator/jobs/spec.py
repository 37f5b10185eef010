"""The specification of a job and its limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)
from ulid import ULID

from ..approvals import InterruptOn
from ..valid_models import ValidTextModel

GIB = 1024**3

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""A job's id: valid as a key, a file name and a label; those made by fanout sort by time."""

ShellCommand = Annotated[str, StringConstraints(min_length=1, max_length=10_000, pattern=r"\S")]
"""A command for a shell (bash, or sh where there is no bash); longer ones belong into a script."""

MaxReworks = Annotated[int, Field(ge=0, le=20)]
"""How often an agent may rework what does not pass its verification. An agent that fails twenty
times cannot repair it."""

OnFailure = Literal["skip", "run"]
"""What becomes of a job when one that it comes after has not succeeded."""

AgentName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""The name of an agent definition."""

BlobId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""The SHA-256 of a blob's content, in hexadecimal."""

MAX_AFTER = 10_000
"""The most jobs after which one job runs: all of a large fan-out."""

MAX_LAYERS = 8
"""The most layers of a job. An engine mounts them with one page of options (4,096 bytes), in which
each path on the host takes up to 300. Longer lists are folded (`orchestrator.workspace.layers`)."""

EventId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")]
"""The id of an entry of a journal."""


PHASE_LABEL, CALL_LABEL = "phase", "label"
"""The labels of a script's calls: the phase, and what the script's author calls each."""

MAX_OWNER_CHARACTERS = 256
"""The longest name of an owner; the subjects of identity providers have up to 255 characters."""


class WireModel(BaseModel):
    """The base of all models that cross a boundary: frozen, and strict about unknown fields.

    A model's validator is built when it is first needed: a short command needs few of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class StartFiles(NamedTuple):
    """The files that a job starts from: a snapshot, and what was changed since, in order."""

    snapshot: BlobId | None = None
    """The archive of a workspace; None: an empty one."""
    layers: tuple[BlobId, ...] = ()
    """Change bundles, each based on the one before it."""

    def update(self) -> dict[str, Any]:
        """Return the fields for the `model_copy` of a `JobSpec`."""
        return self._asdict()

    def blobs(self) -> tuple[BlobId, ...]:
        """Return all blobs that these files need."""
        return (*((self.snapshot,) if self.snapshot else ()), *self.layers)


def new_job_id() -> str:
    """Return a new id; later ids sort after earlier ones."""
    return str(ULID()).lower()


class Limits(WireModel):
    """The limits of one job; None: not set, so that the next layer's value applies."""

    timeout_seconds: float | None = Field(default=None, gt=0)
    """Wall-clock time, summed over all attempts."""
    max_model_calls: int | None = Field(default=None, gt=0)
    """Requests to models that were answered."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Input and output tokens together."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """The cost at list prices. Where a job or its agent sets it, models whose price is unknown are
    refused; the installation's default does not bind these."""
    max_tool_calls: int | None = Field(default=None, gt=0)
    """Tool calls, successful or not."""
    max_wait_seconds: float | None = Field(default=None, ge=0)
    """How long the job waits, in all, for a model whose quota is used up or that is away; 0: it
    fails at once."""
    max_calls: int | None = Field(default=None, gt=0)
    """Jobs that a script may ask for, over its whole run."""
    cpus: float | None = Field(default=None, gt=0)
    """Cores for the commands."""
    memory_bytes: int | None = Field(default=None, ge=64 * 1024**2)
    """Memory for the commands and what they write to `/tmp`."""
    pids: int | None = Field(default=None, ge=16)
    """Processes and threads."""
    disk_bytes: int | None = Field(default=None, ge=1024**2)
    """Bytes that the job may add to its workspace."""
    network: Literal["none"] | tuple[str, ...] | None = None
    """`none`, or the names of the hosts that commands may reach; of a job: some of its agent's."""
    network_bytes: int | None = Field(default=None, ge=1024)
    """Bytes that commands may send to and receive from these hosts, summed over all attempts."""

    def over(self, fallback: Limits) -> Limits:
        """Return these limits, with the unset ones taken from `fallback`."""
        return fallback.model_copy(update=self.model_dump(exclude_none=True))


MAX_CHOICES = 50
"""The most entries in one list of a caller's policy, because each job carries the lists of its
caller."""
MAX_CHOICE_CHARACTERS = 1_000
"""The longest entry, so that the lists leave room in a job's record; a longer command belongs in a
script."""

Choices = Annotated[
    tuple[
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHOICE_CHARACTERS)],
        ...,
    ],
    Field(max_length=MAX_CHOICES),
]
"""Entries of a caller's policy."""


class CallerPolicy(WireModel):
    """What a key or a token of the service may choose for its jobs.

    Beyond it a job has what the definition of its agent says, and narrower limits. A field that is
    None is not set, so that a more general policy decides (`over`); if none does, it permits
    nothing. A job carries the policy of its caller: workers check it again, and the jobs below it
    have it too.
    """

    anything: bool = False
    """Whether it permits all that the installation does, as keys of earlier releases may. Such a
    policy is not stored with a job."""
    models: Choices | None = None
    """Names or patterns, such as `gemini-*`."""
    verify: Choices | None = None
    """Commands for `verify` and `verify_merges`, each exactly as it may be sent; `*`: any."""
    limits: Limits = Limits()
    """The largest values, and hosts beyond the definition's; a larger limit of the definition may
    be asked for as well."""

    def over(self, fallback: CallerPolicy) -> CallerPolicy:
        """Return this policy, with its unset fields taken from a more general one.

        A policy that sets a field does not inherit `anything`.
        """
        if self.anything or self == DEFINITIONS_ONLY:
            return self if self.anything else fallback
        return CallerPolicy(
            models=fallback.models if self.models is None else self.models,
            verify=fallback.verify if self.verify is None else self.verify,
            limits=self.limits.over(fallback.limits),
        )


DEFINITIONS_ONLY = CallerPolicy()
"""The policy of keys and tokens for which an operator has set none."""
ANYTHING = CallerPolicy(anything=True)
"""The policy of keys that were made before there were policies."""


class ModelRate(WireModel):
    """The rate limits of one model, over all workers and coordinators; None: no limit."""

    requests_per_minute: int | None = Field(default=None, gt=0)
    """Requests that reach the service, retries too."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Input and output tokens together; a request that exceeds the limit is sent alone."""

    def named(self) -> dict[str, int]:
        """Return the limits that are set, with their names for people."""
        found = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute}
        return {name: limit for name, limit in found.items() if limit is not None}


class TreeBounds(WireModel):
    """The limits of a tree of jobs that delegate."""

    max_depth: int = Field(default=3, ge=0, le=20)
    """A job at this depth has no children; the root is at depth 0. Each level adds a snapshot, a
    merge and a summary: three suffice for a plan, its parts and their checks."""
    max_children: int = Field(default=256, ge=1, le=1000)
    """The most children of one job over its lifetime; its agent can read their answers page by
    page."""
    max_tree_children: int = Field(default=1000, ge=1)
    """The most jobs in a tree, including ended ones: recursive delegation grows exponentially."""
    max_tree_model_calls: int | None = Field(default=None, gt=0)
    """The most model calls of all jobs of a tree. Each job may finish a call in progress when it is
    reached."""
    max_tree_tokens: int | None = Field(default=None, gt=0)
    """Input and output tokens of all jobs of a tree together. Model calls reserve of it what they
    may use before they are sent."""
    max_tree_cost_usd: float | None = Field(default=None, gt=0)
    """The most cost of all jobs of a tree, at list prices, reserved in the same way. Models whose
    price is unknown are refused."""


def _without_default(form: dict[str, Any]) -> None:
    """Remove a field's default from its JSON schema: a computed value replaces the default."""
    form.pop("default", None)


class JobSpec(WireModel, ValidTextModel):
    """One run of one agent on one task, as the parent specifies it.

    Equal ids are the same job: a repeated submission adds no job.
    """

    id: JobId = Field(default="", json_schema_extra=_without_default)
    """Made by the client, unless it is given (`_is_identified`). A factory here would also run when
    a specification is stored, to leave out the fields with their defaults."""
    root_id: JobId = Field(default="", json_schema_extra=_without_default)
    """The tree that the job belongs to; the job's own id when it has no parent."""
    parent_id: JobId | None = None
    """The job that has delegated this one."""
    depth: int = Field(default=0, ge=0)
    """The number of jobs above it in its tree."""
    tenant: str = Field(default="default", min_length=1, max_length=64)
    """Whose share of the workers it uses."""
    owner: str = Field(default="", max_length=MAX_OWNER_CHARACTERS)
    """Who may see and change it over the service, with all jobs below it; empty: only those who may
    see the jobs of all owners."""
    caller_policy: CallerPolicy | None = None
    """What the key or the token of the submission permits for this job and all jobs below it. None:
    whatever the installation permits, because the operator submitted it."""
    agent: AgentName = "general-purpose"
    """The definition of the agent that works on it."""
    description: str = Field(min_length=1, max_length=200_000)
    """The task, in plain language. The agent knows nothing else but `context` and the files."""
    context: str | None = Field(default=None, max_length=1_000_000)
    """Text from the parent that the sub-agent receives with the description."""
    continues: JobId | None = None
    """A job that has ended, which this one continues: with its conversation and files, and the
    description as the next message to the agent. Fields that this job does not set are taken from
    it."""
    at: EventId | None = None
    """The point of that job from which this one continues: a `checkpoint` of its journal, or its
    last event. None: its end."""
    script: BlobId | None = None
    """A script that this job runs instead of an agent: `agent` says under whose policies and
    limits. Its text has 64 KiB at the most."""
    script_inputs: dict[str, JsonValue] = Field(default_factory=dict)
    """The value of `inputs` in the script."""
    reuse: bool = False
    """Whether calls of the script are answered by jobs of earlier scripts of its owner that were
    given the same. Nothing else is reused."""
    conversation: BlobId | None = None
    """The conversation that the agent begins with: the earlier job's, set from `continues` when the
    job is submitted, or the parent's."""
    inherit: Literal["conversation"] | None = None
    """`conversation`: the agent begins with its parent's conversation up to the call, and works on
    the description as its sub-agent. Only the task of an agent can have it."""
    snapshot: BlobId | None = None
    """The workspace that the job starts from; None: an empty workspace."""
    layers: tuple[BlobId, ...] = Field(default=(), max_length=MAX_LAYERS)
    """Change bundles that are applied to the snapshot before the job starts, in order."""
    name: JobId | None = None
    """What other jobs of the same submission call it in their `after`."""
    after: tuple[JobId, ...] = Field(default=(), max_length=MAX_AFTER)
    """The jobs that have to end before this one runs: their ids, or the names of jobs of the same
    submission. A stored job shows the first thousand."""
    on_failure: OnFailure = "skip"
    """Whether it runs if one of these does not succeed. If it is skipped, it ends as `cancelled`,
    with the error `NotRun`, and so do the jobs that come after it."""
    changes: BlobId | None = None
    """A change bundle that is merged into the files before the agent begins, as changes of this
    job; conflicts are marked. A task whose changes were not merged continues with them."""
    output_schema: dict[str, JsonValue] | None = None
    """A JSON Schema that the answer has to fit."""
    verify: ShellCommand | None = None
    """A command that has to exit with 0 in the sandbox before the job succeeds; it overrides the
    agent definition's."""
    max_reworks: MaxReworks | None = None
    """How often the agent may rework its answer when that command fails, and how often a task's
    changes are returned for rework; it overrides the agent definition's."""
    verify_merges: ShellCommand | None = None
    """A command that has to exit with 0 in the sandbox before the changes of tasks are merged into
    the job's files; it overrides the agent definition's."""
    model: str | None = None
    """The model that replaces the agent definition's. Jobs below it use it too, if their agents'
    own definitions name none."""
    limits: Limits = Limits()
    """Limits that override the agent definition's."""
    interrupt_on: InterruptOn = Field(default_factory=dict)
    """The parent's approval policy. It applies with the definition's own: for each tool the
    stricter one."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Within a tree, jobs of higher priority run first."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """How many attempts may begin; after that, the loss of a worker or a sandbox fails the job."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels for `--label`, set by the submitter."""
    idempotency_key: str | None = None
    """A second submission with the same key adds no job."""
    traceparent: str | None = None
    """The W3C trace context of the submitter."""

    @property
    def start(self) -> StartFiles:
        """The files that the job starts from."""
        return StartFiles(self.snapshot, self.layers)

    @model_validator(mode="before")
    @classmethod
    def _is_identified(cls, data: Any) -> Any:
        """Set a missing id, and make a job without a root the root of its own tree."""
        if isinstance(data, dict):
            job_id = data.get("id") or new_job_id()
            data = {**data, "id": job_id, "root_id": data.get("root_id") or job_id}
        return data

    @model_validator(mode="after")
    def _child_has_depth(self) -> Self:
        if self.parent_id is None and self.depth:
            raise ValueError("a job without parent_id has depth 0")
        return self

    @model_validator(mode="after")
    def _point_is_of_a_job(self) -> Self:
        if self.at is not None and self.continues is None:
            raise ValueError("at is a point of the job that continues names")
        return self
