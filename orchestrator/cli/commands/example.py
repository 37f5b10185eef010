"""`example`: a bundled team of agents on a copy of its sample folder, with a scripted or a real model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.processes import announce_sandbox
from orchestrator.cli.commands.running import coordinate
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.endings import ExitCode, UsageProblem
from orchestrator.cli.terminal.options import AsJson
from orchestrator.cli.terminal.session import run
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.bundled import bundled
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import Embedded
from orchestrator.jobs.failures import UnknownJob
from orchestrator.jobs.state import JobRecord, JobState

EXAMPLES = bundled("config") / "examples"


@dataclass(frozen=True)
class Example:
    """A folder with a team's definitions, its goal, a sample workspace and a script."""

    folder: Path

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return self.folder.name.replace("_", "-")

    @property
    def goal(self) -> str:
        """What the coordinator is told."""
        return " ".join((self.folder / "goal.txt").read_text(encoding="utf-8").split())

    @property
    def about(self) -> str:
        """The title of its README."""
        with (self.folder / "README.md").open(encoding="utf-8") as file:
            return file.readline().removeprefix("# ").strip()


def example(
    name: Annotated[str | None, typer.Argument(help="Which one; none lists them.")] = None,
    *,
    workspace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="An empty folder for the sample; default: a new one."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A real model for all agents.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a bundled team of agents on its sample; nothing to set up.

    It starts a Redis and a worker of its own. Without --model the replies are scripted, so no key
    is needed. The folder with what came of it stays.
    """
    settings = load_settings()
    if name is None:
        _list(as_json=as_json)
        return
    found = _found(name)
    folder = _copied(found, workspace)
    with tempfile.TemporaryDirectory(prefix="fanout-state-") as state:
        told = run(_run(_own_settings(settings, found, model, Path(state)), found, folder))
    if as_json:
        output.document(told)
    else:
        _print_end(told)
    raise typer.Exit(ExitCode.DONE if told["success"] else ExitCode.WORK_FAILED)


async def _run(settings: Settings, found: Example, folder: Path) -> dict[str, Any]:
    output.notice(f"The goal: {found.goal}\nThe folder: {folder}\nStarting a Redis and a worker …")
    async with (
        Embedded(settings, notice=output.notice) as embedded,
        JobClient.from_settings(embedded.settings) as client,
    ):
        announce_sandbox(await client.workers())
        outcome = await coordinate(
            client,
            goal=found.goal,
            workspace=folder,
            agent=COORDINATOR,
            model=None,
            default_model=settings.model,
            look_back=None,
        )
        records = await _records(client, outcome.root_id)
    return {
        "success": outcome.success,
        "text": outcome.text,
        "root_id": outcome.root_id,
        "error": outcome.error.model_dump() if outcome.error else None,
        "jobs": [{"agent": record.agent, "state": str(record.state)} for record in records],
        "most_at_once": _most_at_once(records),
        "workspace": str(folder),
        "files": _new_files(found, folder),
    }


async def _records(client: JobClient, root_id: str) -> list[JobRecord]:
    """The jobs of the sub-agents."""
    try:
        return await client.tree(root_id)
    except UnknownJob:  # a team whose coordinator did everything itself
        return []


def _most_at_once(records: Sequence[JobRecord]) -> int:
    """How many of the jobs ran at the same time."""
    spans = [
        (one.started_at, one.finished_at) for one in records if one.started_at and one.finished_at
    ]
    running = (sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)
    return max(running, default=0)


def _found(name: str) -> Example:
    found = {one.name: one for one in _examples()}
    key = name.replace("_", "-")
    if key not in found:
        raise UsageProblem(f"There is no example {name!r}. There are: {', '.join(found)}.")
    return found[key]


def _examples() -> list[Example]:
    return [Example(path.parent) for path in sorted(EXAMPLES.glob("*/goal.txt"))]


def _list(*, as_json: bool) -> None:
    told = [
        {"name": one.name, "about": one.about, "folder": str(one.folder)} for one in _examples()
    ]
    if as_json:
        output.document({"examples": told})
        return
    output.table(
        ("NAME", "WHAT IT IS", "FOLDER"),
        [(one["name"], one["about"], one["folder"]) for one in told],
        elastic=(-2,),
    )


def _own_settings(settings: Settings, found: Example, model: str | None, state: Path) -> Settings:
    """Nothing of a person's own set-up but the sandbox and the keys.

    Fresh state, the team's agents.
    """
    own = {
        "redis_url": None,
        "blobs_url": None,
        "state_dir": state,
        "agents_dir": found.folder / "agents",
        "model": model or f"scripted:{found.folder / 'script.yaml'}",
    }
    return settings.model_copy(update=own)


def _copied(found: Example, workspace: Path | None) -> Path:
    """The folder with a copy of the sample."""
    folder = workspace or Path(tempfile.mkdtemp(prefix=f"fanout-{found.name}-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageProblem(
                f"{folder} is not empty: --workspace takes an empty or a new folder."
            )
        shutil.copytree(found.folder / "workspace", folder, dirs_exist_ok=True)
    except OSError as error:
        raise UsageProblem(f"The sample cannot be put into {folder}: {error.strerror}.") from error
    return folder.resolve()


def _new_files(found: Example, folder: Path) -> list[str]:
    """What is in the folder and was not in the sample, or is different now."""
    sample = found.folder / "workspace"
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path) for path in paths if not _same(folder / path, sample / path)]


def _same(path: Path, other: Path) -> bool:
    return other.is_file() and path.read_bytes() == other.read_bytes()


def _print_end(told: dict[str, Any]) -> None:
    output.notice("")
    if told["text"]:
        output.payload(output.printable(told["text"]))
    if told["error"] is not None:
        output.notice(f"{told['error']['type']}: {told['error']['message']}")
    lost = sum(job["state"] != JobState.SUCCEEDED for job in told["jobs"])
    jobs = f"{len(told['jobs'])} jobs, {told['most_at_once']} at once, {lost} without success"
    output.notice(f"\n{jobs}. New in {told['workspace']}:")
    for name in told["files"]:
        output.notice(f"  {output.printable(name)}")
