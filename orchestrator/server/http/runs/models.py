"""The bodies of requests and responses about runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.configuration.agent_definitions import COORDINATOR
from fanout.orchestrator.jobs.result import Usage
from fanout.orchestrator.jobs.spec import (
    AgentName,
    BlobId,
    EventId,
    JobId,
    JobSpec,
    Limits,
    MaxReworks,
    ShellCommand,
)
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.server.http.models import JobLine, JobView, Labels, Text, WebhookRequest
from fanout.orchestrator.workspace.exchange.cloned import MAX_DEPTH, GitSource


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class GitWorkspace(_Body):
    """A commit of a Git repository."""

    url: str = Field(max_length=2_000, examples=["https://git.example.com/team/project.git"])
    """`https://host/path`, without a user or a password."""
    ref: str = Field(default="HEAD", max_length=250)
    """A branch, a tag or a commit."""
    depth: int = Field(default=1, ge=1, le=MAX_DEPTH)
    """How many commits are fetched."""

    def source(self) -> GitSource:
        """Return it as the workspace's code knows it."""
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
    """A run to be started."""

    goal: Text = Field(
        min_length=1,
        max_length=200_000,
        pattern=r"\S",
        examples=["Make the failing tests pass, and say why they failed."],
    )
    """The task, in plain language."""
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
        return self

    def spec(self, idempotency_key: str | None) -> JobSpec:
        """Return the specification of its root job, without a snapshot.

        What was not given is not set: a continuation takes it from the earlier run.

        Args:
            idempotency_key: The key of the request.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        given["description"] = given.pop("goal")
        for name in ("workspace", "webhook"):
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
    def of_run(cls, record: JobRecord, usage: Usage, states: Mapping[str, int]) -> RunLine:
        """Return the line of a run."""
        line = JobLine.of(record, usage, sum(states.values()))
        return cls.model_construct(**dict(line), jobs=dict(states))


class RunList(_Body):
    """A page of runs, newest first."""

    items: list[RunLine]
    next_cursor: str | None = None
    """For the next page; null at the end."""
