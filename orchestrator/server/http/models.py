"""The bodies of requests and responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    model_validator,
)

from ...approvals import Decision, InterruptOn
from ...configuration.agent_definitions import COORDINATOR
from ...jobs.approvals import Approval
from ...jobs.bounds import MAX_KEY_CHARACTERS
from ...jobs.budget import BudgetState
from ...jobs.result import JobResult, Usage
from ...jobs.spec import (
    MAX_AFTER,
    AgentName,
    BlobId,
    EventId,
    JobId,
    JobSpec,
    Limits,
    MaxReworks,
    OnFailure,
    ShellCommand,
)
from ...jobs.state import JobRecord
from ...jobs.store.journal import JournalEvent
from ...jobs.store.subscription import (
    MAX_URL_CHARACTERS,
    NotifiedEvent,
    Subscription,
)
from ...jobs.timeline import LandedChanges, Phase
from ...scripts.program import MAX_SCRIPT_BYTES, title_of
from ...scripts.texts import A_SCRIPT
from ...workspace.exchange.cloned import MAX_DEPTH, GitSource

MAX_BATCH = 1_000
"""The most jobs of one request: they are stored within half a second."""
SHOWN_CHARACTERS = 500
"""The longest part of a description in a list; the job itself has all of it."""

ONE, MANY = "one job", "many jobs"
"""The two kinds of a submission's body; `problems` leaves them out of the place of an error."""

Labels = dict[
    Annotated[str, Field(min_length=1, max_length=100)], Annotated[str, Field(max_length=1_000)]
]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    return text


Text = Annotated[str, AfterValidator(_without_nul)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class WebhookRequest(_Body):
    """A URL that is told of what happens to a job."""

    url: str = Field(min_length=1, max_length=MAX_URL_CHARACTERS)
    """On the public internet, with https."""
    secret: SecretStr
    """Signs the messages, as Standard Webhooks says: `whsec_` and 24 to 64 random bytes in
    base64."""
    events: frozenset[NotifiedEvent] = Field(
        default=frozenset({NotifiedEvent.END, NotifiedEvent.APPROVAL}), min_length=1
    )
    """`end`, `approval` (the job, or one below it, waits for a person), `state` (each change)."""

    def subscription(self, **fields: Any) -> Subscription:
        """Return the subscription that it asks for."""
        return Subscription(url=self.url, secret=self.secret, events=self.events, **fields)


class JobRequest(_Body):
    """A job to be submitted."""

    description: Text = Field(
        min_length=1,
        max_length=200_000,
        pattern=r"\S",
        examples=["Summarize the release notes in notes/ in ten lines."],
    )
    """The task, in plain language."""
    agent: AgentName = "general-purpose"
    """The agent definition that works on it."""
    context: Text | None = Field(default=None, max_length=1_000_000)
    """Further text for the agent."""
    model: str | None = Field(default=None, max_length=200)
    """Overrides the agent definition's, if the caller may choose it."""
    snapshot: BlobId | None = None
    """The workspace that it starts from, as `POST /v1/snapshots` returns it; null: an empty one."""
    continues: JobId | None = None
    """A job that has ended, whose conversation and files this one goes on with."""
    at: EventId | None = None
    """A checkpoint of that job from which this one goes on; null: its end."""
    name: JobId | None = None
    """What other jobs of this list call it in `after`."""
    after: tuple[JobId, ...] = Field(default=(), max_length=MAX_AFTER)
    """The jobs that have to end before it runs: ids, or names of jobs of this list."""
    on_failure: OnFailure = "skip"
    """What becomes of it when one of these does not succeed: `run`, or `skip` (it ends as
    `cancelled`, with the error type `NotRun`)."""
    output_schema: dict[str, JsonValue] | None = None
    """A JSON Schema that the answer has to fit."""
    verify: ShellCommand | None = None
    """A command that has to exit with 0 in the sandbox before the job succeeds, if the caller may
    choose it."""
    verify_merges: ShellCommand | None = None
    """A command that has to exit with 0 before changes of tasks are kept, if the caller may choose
    it."""
    max_reworks: MaxReworks | None = None
    """How often the agent may rework what does not pass."""
    limits: Limits = Limits()
    """Override the agent definition's: narrower, or as far as the caller may choose."""
    interrupt_on: InterruptOn = Field(default_factory=dict)
    """Tools that a person has to approve, beside those of the definition."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Within a tree, jobs of higher priority run first."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """How often it is begun, before the loss of workers is its failure."""
    labels: Labels = Field(default_factory=dict, max_length=50)
    """For filters and reports."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=MAX_KEY_CHARACTERS)
    """A second submission with this key is the same job."""
    traceparent: str | None = None
    """The W3C trace context that the job's spans belong to; one of another form is ignored."""

    webhook: WebhookRequest | None = None
    """Who is told when the job ends, or waits for a person."""

    @model_validator(mode="after")
    def _point_is_of_a_job(self) -> JobRequest:
        if self.at is not None and self.continues is None:
            raise ValueError("at is a point of the job that continues names")
        return self

    def spec(self, **fields: Any) -> JobSpec:
        """Return the job's specification.

        Missing fields are not set: a continuation takes them from the earlier job.

        Args:
            fields: Values that override or add to those of the request.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set - {"webhook"}}
        return JobSpec.model_validate({**given, **fields})


class SubmittedJob(_Body):
    """The answer to a submission."""

    id: JobId
    links: dict[str, str]


class SubmittedJobs(_Body):
    """The answer to the submission of a list: the ids in its order."""

    job_ids: list[JobId]


class JobView(JobRecord):
    """A job, and its result when it has ended."""

    result: JobResult | None = None
    usage: Usage | None = None
    """What it and the jobs below it have used together."""
    budget: BudgetState | None = None
    """What of its limits for tokens and money is used, reserved for model calls, and left; null
    without such a limit."""
    links: dict[str, str] = Field(default_factory=dict)


_OF_RECORD = JobRecord.model_fields.keys()


class JobLine(_Body):
    """A job in a list."""

    id: JobId
    root_id: JobId
    parent_id: JobId | None
    depth: int
    tenant: str
    owner: str
    agent: str
    description: str
    """Its beginning."""
    model: str | None
    continues: JobId | None
    name: JobId | None = None
    labels: dict[str, str]
    state: str
    attempt: int
    worker: str | None
    submitted_at: float
    started_at: float | None
    finished_at: float | None
    waiting_for: str | None
    waits_until: float | None = None
    """When the model for which it waits is tried again; null: it waits for no model."""
    approvals: tuple[str, ...]
    last_event: str | None
    reason: str | None
    next_step: str | None
    error_type: str | None
    landed: LandedChanges | None = None
    """What became of its changes in the files of its parent."""
    tasks_failed: int = 0
    """Of a tree's root: how many jobs that others submitted have failed or timed out."""
    tasks_unmerged: int = 0
    """Of a tree's root: how many jobs have changes that could not be put into their parent's
    files."""
    batch: JobId | None = None
    """Of a job that was submitted together with others, each a tree: the first one's id."""
    tree_size: int = 1
    """How many jobs its tree has, or had."""
    usage: Usage | None = None
    """What it and the jobs below it have used together."""
    budget: BudgetState | None = None
    """What of its limits for tokens and money is used, reserved for model calls, and left; null
    without such a limit."""

    @classmethod
    def of(cls, record: JobRecord, budget: BudgetState | None = None, tree_size: int = 1) -> Self:
        """Return the line of a job."""
        fields = {name: getattr(record, name) for name in cls.model_fields if name in _OF_RECORD}
        fields["description"] = record.description[:SHOWN_CHARACTERS]
        if budget is not None:
            fields["usage"] = budget.used
            fields["budget"] = budget.if_limited()
        return cast("Self", cls.model_construct(**fields, tree_size=tree_size))


class TreeLine(JobLine):
    """A job in a view of its tree."""

    phases: tuple[Phase, ...] = ()
    """When it was queued, running, waiting, verifying or landing, oldest first; of a very long job
    the newest ones."""


class Webhook(_Body):
    """A webhook of a job, without its secret."""

    id: str
    url: str
    events: list[NotifiedEvent]

    @classmethod
    def of(cls, subscription: Subscription) -> Webhook:
        """Return a subscription as it is shown."""
        events = sorted(subscription.events)
        return cls(id=subscription.id, url=subscription.url, events=events)


class WebhookList(_Body):
    """The webhooks of a job."""

    items: list[Webhook]


class JobList(_Body):
    """A page of jobs, newest first."""

    items: list[JobLine]
    next_cursor: str | None = None
    """For the next page; null at the end."""


class TreeList(_Body):
    """The jobs of a tree, parents before children."""

    items: list[TreeLine]


class EventList(_Body):
    """A page of a journal."""

    items: list[JournalEvent]
    next_after: str | None = None
    """The value of `after` for the next page; null at the end, as far as it is written."""
    next_before: str | None = None
    """The value of `before` for the page of older entries; null at the beginning, and for a page
    that was not asked for from its end."""


class ApprovalList(_Body):
    """The calls that wait for a decision."""

    items: list[Approval]


class ApprovalDecision(_Body):
    """A person's decision about a call."""

    decision: Decision
    message: Text = Field(default="", max_length=20_000)
    arguments: dict[str, JsonValue] | None = None
    """For `edit`: the complete arguments that the call runs with."""
    response: JsonValue = None
    """For `respond`: what the agent gets as the tool's result."""


class Answered(_Body):
    """An approval that was answered."""

    id: str
    job_id: JobId


class Message(_Body):
    """A message for a job's agent."""

    text: Text = Field(min_length=1, max_length=20_000, pattern=r"\S")


class AgentLine(_Body):
    """An agent that jobs may name."""

    name: str
    description: str
    model: str | None
    subagents: list[str]


class AgentList(_Body):
    """The agents that jobs may name."""

    items: list[AgentLine]


class LeftOutFile(_Body):
    """A file that is not in a snapshot."""

    path: str
    reason: str


class StoredSnapshot(_Body):
    """A workspace that jobs can start from."""

    snapshot: BlobId
    files: int
    """Without those of Git's own data."""
    bytes: int
    left_out: list[LeftOutFile]
    """Files that seem to be secret or cannot be copied; the first hundred."""
    limits: list[str] = []
    """What Git cannot do with the files, a sentence each; the first hundred."""


class GitWorkspace(_Body):
    """A commit of a Git repository."""

    url: str = Field(max_length=2_000, examples=["https://git.example.com/team/project.git"])
    """`https://host/path`, without a user or a password."""
    ref: str = Field(default="HEAD", max_length=250)
    """A branch, a tag or a commit."""
    depth: int = Field(default=1, ge=1, le=MAX_DEPTH)
    """How many commits are fetched."""

    def source(self) -> GitSource:
        """Return it in the form of the workspace's code."""
        return GitSource(self.url, self.ref, self.depth)


class RunWorkspace(_Body):
    """The files that a run starts from: one of these."""

    snapshot: BlobId | None = None
    """As `POST /v1/snapshots` returns it."""
    git: GitWorkspace | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.snapshot is None) == (self.git is None):
            raise ValueError("a workspace is either a snapshot or git")
        return self


class RunRequest(_Body):
    """A run to be started: of an agent by its `goal`, or of a `script`."""

    goal: Text | None = Field(
        default=None,
        min_length=1,
        max_length=200_000,
        pattern=r"\S",
        examples=["Make the failing tests pass, and say why they failed."],
    )
    """The task, in plain language; of a script what lists show, by default its first line."""
    script: Text | None = Field(
        default=None, min_length=1, max_length=MAX_SCRIPT_BYTES, pattern=r"\S"
    )
    """A script that calls agents, at most 64 KiB; its value is the `output` of the result."""
    inputs: dict[str, JsonValue] | None = None
    """The values of the script's `inputs`."""
    reuse: bool = False
    """Whether calls of the script have the results of equal calls of the caller's earlier scripts:
    the same arguments, agent, model and files."""
    agent: AgentName = COORDINATOR
    """The agent that works on it."""
    workspace: RunWorkspace | None = None
    """The files; null: none, or those of the run that it continues."""
    context: Text | None = Field(default=None, max_length=1_000_000)
    """Further text for the agent."""
    model: str | None = Field(default=None, max_length=200)
    """Overrides the agent definition's, if the caller may choose it."""
    verify: ShellCommand | None = None
    """A command that has to exit with 0 in the sandbox before the run succeeds, if the caller may
    choose it."""
    verify_merges: ShellCommand | None = None
    """A command that has to exit with 0 before changes of tasks are kept, if the caller may choose
    it."""
    max_reworks: MaxReworks | None = None
    """How often the agent may rework what does not pass."""
    continues: JobId | None = None
    """A run that has ended, whose conversation and files this one goes on with."""
    at: EventId | None = None
    """A checkpoint of that run from which this one goes on; null: its end."""
    limits: Limits = Limits()
    """Override the agent definition's: narrower, or as far as the caller may choose."""
    interrupt_on: InterruptOn = Field(default_factory=dict)
    """Tools that a person has to approve, beside those of the definition."""
    output_schema: dict[str, JsonValue] | None = None
    """A JSON Schema that the answer has to fit."""
    labels: Labels = Field(default_factory=dict, max_length=50)
    """For filters and reports."""
    traceparent: str | None = None
    """The W3C trace context that the run's spans belong to; one of another form is ignored."""
    webhook: WebhookRequest | None = None
    """Who is told when it ends, or waits for a person."""

    @model_validator(mode="after")
    def _continues_with_its_files(self) -> Self:
        if self.at is not None and self.continues is None:
            raise ValueError("at is a point of the run that continues names")
        if self.continues is not None and self.workspace is not None:
            raise ValueError("a run that continues another has its files: leave workspace out")
        if self.goal is None and self.script is None:
            raise ValueError("a run has a goal or a script")
        if self.inputs is not None and self.script is None:
            raise ValueError("inputs are the values of a script")
        if self.reuse and self.script is None:
            raise ValueError("reuse is for the calls of a script")
        return self

    def spec(self, idempotency_key: str | None) -> JobSpec:
        """Return the specification of its root job, without a snapshot and without its script.

        Missing fields are not set: a continuation takes them from the earlier run.

        Args:
            idempotency_key: The key of the request.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        given["description"] = given.pop("goal", None) or title_of(self.script or "") or A_SCRIPT
        for name in ("workspace", "webhook", "script", "inputs"):
            given.pop(name, None)
        if self.continues is None:
            given["agent"] = self.agent
        if idempotency_key is not None:
            given["idempotency_key"] = idempotency_key
        return JobSpec.model_validate(given)


class SubmittedRun(_Body):
    """The answer to the start of a run."""

    id: JobId
    """Of its root job."""
    snapshot: BlobId | None
    """What it starts from."""
    links: dict[str, str]


class RunView(JobView):
    """A run: its root job, and how many of its jobs are in which state."""

    jobs: dict[str, int] = Field(default_factory=dict)


class RunLine(JobLine):
    """A run in a list."""

    jobs: dict[str, int]
    """How many of its jobs are in which state."""

    @classmethod
    def of_run(cls, record: JobRecord, budget: BudgetState, states: Mapping[str, int]) -> RunLine:
        """Return the line of a run."""
        line = JobLine.of(record, budget, sum(states.values()))
        return cls.model_construct(**dict(line), jobs=dict(states))


class RunList(_Body):
    """A page of runs, newest first."""

    items: list[RunLine]
    next_cursor: str | None = None
    """For the next page; null at the end."""
