"""Parses and validates the jobs that a person submits: from options or from a JSON Lines file."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.cli.terminal.included_files import included_files
from fanout.orchestrator.configuration.known_names import possible_model
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.spelling import did_you_mean

SET_BY_FANOUT = frozenset({"root_id", "parent_id", "depth", "traceparent", "conversation"})
"""A job's position in its tree, and what follows from other fields: its author cannot choose it."""

KEYS = (
    "workspace",
    "include",
    *(name for name in JobSpec.model_fields if name not in SET_BY_FANOUT),
)

MAX_BAD_LINES_SHOWN = 50
"""In a file of another format every line is bad."""


class PlannedJob(BaseModel):
    """A validated job and the folder that it starts from."""

    model_config = ConfigDict(frozen=True)

    spec: JobSpec
    workspace: Path | None = None
    include: frozenset[str] = frozenset()
    """Files that its snapshot has even if Git ignores them or they seem to be secret."""


def read_job_file(
    name: str, agents: Collection[str], defaults: Mapping[str, Any]
) -> list[PlannedJob]:
    """Read the jobs of a JSON Lines file.

    Args:
        name: the file's path, or `-` for stdin.
        agents: the names of the known agents.
        defaults: values for keys that a line omits.

    Raises:
        UsageProblem: the file cannot be read, has no jobs, or has invalid lines; the message lists
            them.
    """
    jobs: list[PlannedJob] = []
    problems: list[str] = []
    first_with_id: dict[str, int] = {}
    where = "stdin" if name == "-" else name
    for number, line in enumerate(_lines(name), start=1):
        if not line.strip():
            continue
        try:
            job = plan(_object(line), agents, defaults)
        except UsageProblem as problem:
            problems.append(f"{where}:{number}: {problem}")
            continue
        first = first_with_id.setdefault(job.spec.id, number)
        if first != number:
            problems.append(f"{where}:{number}: id {job.spec.id!r} is already used in line {first}")
        jobs.append(job)
    if problems:
        raise UsageProblem(_summary(problems))
    if not jobs:
        raise UsageProblem(f"{where} has no jobs.")
    return jobs


def plan(
    given: Mapping[str, Any], agents: Collection[str], defaults: Mapping[str, Any]
) -> PlannedJob:
    """Validate one job.

    Args:
        given: the keys and values that its author wrote.
        agents: the names of the known agents.
        defaults: values for keys that `given` omits.

    Raises:
        UsageProblem: a key or a value is wrong, the agent is unknown or the workspace is missing.
    """
    if unknown := [key for key in given if key not in KEYS]:
        raise UsageProblem(f"unknown key {unknown[0]!r}; allowed are {', '.join(KEYS)}")
    values = _merged(defaults, given)
    workspace = _workspace(values.pop("workspace", None))
    include = _include(values.pop("include", []), workspace)
    try:
        spec = JobSpec.model_validate(values)
    except ValidationError as error:
        raise UsageProblem("; ".join(_format_error(detail) for detail in error.errors())) from None
    if not spec.description.strip():
        raise UsageProblem("description: it is empty; say what the agent is to do")
    if spec.agent not in agents:
        raise UsageProblem(
            f"there is no agent {spec.agent!r}.{did_you_mean(spec.agent, agents)} `fanout agents` "
            "lists them"
        )
    _check_model(spec.model)
    if workspace is not None and spec.start.blobs():
        raise UsageProblem("specify either workspace or snapshot and layers, not both")
    if workspace is not None and spec.continues is not None:
        raise UsageProblem("a job that continues another starts from its files: omit the workspace")
    return PlannedJob(spec=spec, workspace=workspace, include=include)


def _check_model(name: str | None) -> None:
    try:
        possible_model(name or "")
    except ValueError as error:
        raise UsageProblem(f"model: {error}") from None


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the given values into the defaults; labels and limits entry by entry."""
    values = {**defaults, **given}
    for name in ("labels", "limits"):
        if isinstance(given.get(name), dict) and isinstance(defaults.get(name), dict):
            values[name] = {**defaults[name], **given[name]}
    return values


def _workspace(value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path):
        raise UsageProblem("workspace: must be a path")
    path = Path(value).expanduser()
    if not path.is_dir():
        raise UsageProblem(f"workspace {str(value)!r} is not a folder")
    return path.resolve()


def _include(value: Any, workspace: Path | None) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise UsageProblem("include: must be a list of paths")
    if value and workspace is None:
        raise UsageProblem("include: names files of a workspace, so specify a workspace")
    return frozenset() if workspace is None else included_files(value, workspace)


def _lines(name: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageProblem(f"{name} cannot be read: {error.strerror}.") from error
    return data.decode("utf-8-sig", errors="surrogateescape").split("\n")


def _object(line: str) -> dict[str, Any]:
    try:
        line.encode()
        value = json.loads(line)
    except UnicodeEncodeError:
        raise UsageProblem("not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageProblem(
            'not a JSON object; a line has the form {"agent": "…", "description": "…"}'
        )
    return value


def _format_error(detail: Any) -> str:
    location = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    return f"{location}: {message}" if location else str(message)


def _summary(problems: list[str]) -> str:
    shown = problems[:MAX_BAD_LINES_SHOWN]
    if len(problems) > len(shown):
        shown.append(f"… and {len(problems) - len(shown)} more lines")
    return "\n".join([*shown, "Nothing was submitted."])
