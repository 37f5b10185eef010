"""Parses and validates the jobs that a person submits, and the files that they start from.

Jobs come from options or from a JSON Lines file. They do not get files of a folder that ignore
rules exclude, unless a person includes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from ...configuration.known_names import possible_model
from ...jobs.changes import SkippedFile
from ...jobs.graph import GraphProblem, InvalidGraph, resolved
from ...jobs.spec import JobSpec
from ...path_text import os_path, path_text
from ...spelling import did_you_mean
from ...workspace.rooted import PathRefused, check_path
from ...workspace.workspace import Workspace
from ..terminal import output
from ..terminal.exit_codes import UsageProblem

SET_BY_FANOUT = frozenset({"root_id", "parent_id", "depth", "traceparent", "conversation"})
"""A job's position in its tree, and fields derived from others: its author cannot choose them."""

KEYS = (
    "workspace",
    "include",
    *(name for name in JobSpec.model_fields if name not in SET_BY_FANOUT),
)

MAX_BAD_LINES_SHOWN = 50
"""The most bad lines that are listed: in a file of another format every line is bad."""
SHOWN_FILES = 20
"""The most files that are listed: more lines would hide the other output of a command."""

IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PATH",
        help=(
            "A file of the workspace that jobs get even if Git ignores it or it seems to be "
            "secret; repeat for several."
        ),
    ),
]


class PlannedJob(BaseModel):
    """A validated job and the folder that it starts from."""

    model_config = ConfigDict(frozen=True)

    spec: JobSpec
    workspace: Path | None = None
    where: str = ""
    """The file and the line that it is from."""
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
        job = job.model_copy(update={"where": f"{where}:{number}"})
        first = first_with_id.setdefault(job.spec.id, number)
        if first != number:
            problems.append(f"{where}:{number}: id {job.spec.id!r} is already used in line {first}")
        jobs.append(job)
    if problems:
        raise UsageProblem(_summary(problems))
    if not jobs:
        raise UsageProblem(f"{where} has no jobs.")
    return with_resolved_names(jobs)


def with_resolved_names(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return jobs with ids in place of the names of others in their `after`.

    Raises:
        UsageProblem: They are no graph; the message lists the bad lines.
    """
    try:
        specs = resolved([job.spec for job in jobs])
    except InvalidGraph as error:
        raise bad_lines(jobs, error.problems) from None
    return [job.model_copy(update={"spec": spec}) for job, spec in zip(jobs, specs, strict=True)]


def bad_lines(jobs: Sequence[PlannedJob], problems: Sequence[GraphProblem]) -> UsageProblem:
    """Return the refusal of jobs that are no graph, with the line of each problem."""
    found = ((jobs[one.position].where, one.text) for one in problems)
    return UsageProblem(_summary([f"{where}: {text}" if where else text for where, text in found]))


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
        raise UsageProblem("description: it is empty; describe the agent's task")
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


def included_files(paths: Sequence[str], workspace: Path) -> frozenset[str]:
    """Return the paths of files that a person includes, relative to the workspace.

    Args:
        paths: As the person wrote them: relative to the workspace, or absolute.
        workspace: The workspace's absolute path.

    Raises:
        UsageProblem: One is not a file of the workspace.
    """
    return frozenset(_included(path, workspace) for path in paths)


def _included(text: str, workspace: Path) -> str:
    path = Path(text).expanduser()
    if not (workspace / path).exists():  # in the form of the list of files that were not sent
        path = Path(os_path(text)).expanduser()
    try:
        inner = (path.relative_to(workspace) if path.is_absolute() else path).as_posix()
        check_path(path_text(inner))
        is_file = (workspace / inner).is_file()
    except (ValueError, PathRefused):
        is_file = False
    if not is_file:
        raise UsageProblem(f"--include {text!r} is not a file in {workspace}: name one.")
    return inner


@dataclass(frozen=True)
class Shortfall:
    """The parts of folders that jobs do not get."""

    left_at_home: tuple[SkippedFile, ...] = ()
    """Files that seem to be secret."""
    left_out: tuple[SkippedFile, ...] = ()
    """Files that cannot be copied."""
    limits: tuple[str, ...] = ()
    """What Git cannot do with the files, a sentence each."""

    @classmethod
    def of(cls, workspaces: Iterable[Workspace]) -> Self:
        """Return the parts that the last snapshots of different folders lack."""
        each = list(workspaces)
        return cls(
            tuple(file for workspace in each for file in workspace.left_at_home),
            tuple(file for workspace in each for file in workspace.skipped),
            tuple(limit for workspace in each for limit in workspace.limits),
        )

    def print(self) -> None:
        """Print the parts on stderr."""
        _print_files("not sent", self.left_at_home)
        if self.left_at_home:
            output.notice("To send such a file: --include PATH")
        _print_files("left out", self.left_out)
        for limit in self.limits[:SHOWN_FILES]:
            output.notice(output.one_line(limit))

    def document(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {
            "left_at_home": [file.model_dump(mode="json") for file in self.left_at_home],
            "left_out": [file.model_dump(mode="json") for file in self.left_out],
            "limits": list(self.limits),
        }


def _print_files(what: str, files: Sequence[SkippedFile]) -> None:
    for file in files[:SHOWN_FILES]:
        output.notice(f"{what}: {output.one_line(file.path)} ({file.reason.rstrip('.')})")
    if len(files) > SHOWN_FILES:
        output.notice(f"{what}: … and {len(files) - SHOWN_FILES} more")
