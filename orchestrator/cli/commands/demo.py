"""`demo`: the main job on a bundled sample, nothing to configure.

Only the model's words are scripted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.processes import announce_sandbox
from orchestrator.cli.commands.running import coordinate
from orchestrator.cli.terminal import output, words
from orchestrator.cli.terminal.endings import ExitCode, UsageProblem, WorkFailed
from orchestrator.cli.terminal.options import AsJson
from orchestrator.cli.terminal.session import run
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.demo import GOAL, MODEL, TEST_COMMAND, TEST_TASK, copy_sample
from orchestrator.embedded.services import Embedded
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.state import JobState
from orchestrator.jobs.store.journal import EventType

TESTER = "tester"
SHOWN_LINES = 12
"""The end of a test run is where its verdict stands."""


def demo(
    *,
    workspace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="An empty folder for the sample; default: temporary."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave Redis, the worker and the folder for later commands."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Watch six sub-agents mend a small project; nothing to set up.

    A coordinator finds the tests red, gives out the tasks, merges what comes back and ends with
    green tests. It starts a Redis and a worker of its own. The model's replies are scripted, so no
    key is needed; agents, jobs, sandboxes and merges are real.
    """
    settings = load_settings()
    with _folders(settings, workspace, keep=keep) as (folder, state_dir):
        told = run(_demo(_demo_settings(settings, state_dir), folder, keep=keep))
        if as_json:
            output.document(told)
        else:
            _print_end(told, folder, kept=keep, stays=keep or workspace is not None)
    raise typer.Exit(ExitCode.DONE if told["success"] else ExitCode.WORK_FAILED)


async def _demo(settings: Settings, folder: Path, *, keep: bool) -> dict[str, Any]:
    began = time.monotonic()
    output.notice(f"The sample: {folder}")
    output.notice("Starting a Redis and a worker …")
    async with (
        Embedded(settings, keep=keep, notice=output.notice) as embedded,
        JobClient.from_settings(embedded.settings) as client,
    ):
        announce_sandbox(await client.workers())
        red = await _tests_pass(client, folder, "before")
        output.notice(f"\nThe goal: {GOAL}")
        outcome = await coordinate(
            client,
            goal=GOAL,
            workspace=folder,
            agent=COORDINATOR,
            model=MODEL,
            default_model=MODEL,
            look_back="fanout tree" if keep else None,
        )
        if outcome.text:
            output.notice(outcome.text)
        green = await _tests_pass(client, folder, "after")
        jobs = await client.tree(outcome.root_id) if outcome.success else []
    return {
        "success": outcome.success and not red and green,
        "tests_before": "passed" if red else "failed",
        "tests_after": "passed" if green else "failed",
        "text": outcome.text,
        "root_id": outcome.root_id,
        "error": outcome.error.model_dump() if outcome.error else None,
        "jobs": len(jobs),
        "seconds": round(time.monotonic() - began, 1),
    }


async def _tests_pass(client: JobClient, folder: Path, when: str) -> bool:
    """Run the sample's tests as a job of the tester, and show the end of what they printed."""
    spec = JobSpec(
        agent=TESTER, description=TEST_TASK, model=MODEL, labels={"demo": f"tests-{when}"}
    )
    job_id = await client.submit(spec, workspace=folder)
    result = await client.wait(job_id)
    if result.state is not JobState.SUCCEEDED:
        why = f"{result.error.type}: {result.error.message}" if result.error else str(result.state)
        raise WorkFailed(f"The tests could not be run in a sandbox: {why}")
    code, text = await _command_result(client, job_id)
    output.notice(
        f"\n$ {TEST_COMMAND}    # in a sandbox, {when}: {'green' if code == 0 else 'red'}"
    )
    for line in text.strip().splitlines()[-SHOWN_LINES:]:
        output.notice(f"  {line}")
    return code == 0


async def _command_result(client: JobClient, job_id: str) -> tuple[int, str]:
    """What the job's last command came to, by its journal: exit code and output."""
    code, text = 1, ""
    async for event in client.events(job_id, follow=False):
        if event.type is EventType.TOOL_RESULT:
            for answer in words.tool_answers(event):
                code, text = int(answer.get("exit_code", 1)), str(answer.get("output", ""))
    return code, text


def _demo_settings(settings: Settings, state_dir: Path) -> Settings:
    """Nothing of a person's own set-up but the sandbox.

    Fresh state, shipped agents, the scripted model.
    """
    own = {
        "redis_url": None,
        "blobs_url": None,
        "agents_dir": None,
        "state_dir": state_dir,
        "model": MODEL,
    }
    return settings.model_copy(update=own)


@contextmanager
def _folders(
    settings: Settings, workspace: Path | None, *, keep: bool
) -> Iterator[tuple[Path, Path]]:
    """The sample's folder, a Git checkout of its own, and the folder of the state."""
    base = Path(tempfile.mkdtemp(prefix="fanout-demo-"))
    folder = (workspace or base / "sample").resolve()
    try:
        _place_sample(folder)
        yield folder, settings.state_dir if keep else base / "state"
    finally:
        if not keep:
            shutil.rmtree(base, ignore_errors=True)


def _place_sample(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageProblem(
                f"{folder} is not empty: --workspace takes an empty or a new folder."
            )
        copy_sample(folder)
    except OSError as error:
        raise UsageProblem(f"The sample cannot be put into {folder}: {error.strerror}.") from error
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "The sample as it was")


def _git(folder: Path, *arguments: str) -> str:
    """Run Git in the sample with none of the person's own settings."""
    person = {"GIT_AUTHOR_NAME": "fanout", "GIT_AUTHOR_EMAIL": "fanout@localhost"}
    committer = {"GIT_COMMITTER_NAME": "fanout", "GIT_COMMITTER_EMAIL": "fanout@localhost"}
    env = (
        os.environ
        | person
        | committer
        | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    )
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the one on PATH
            capture_output=True,
            check=True,
            env=env,
        )
    except FileNotFoundError:
        raise UsageProblem("git is not on PATH: fanout merges with it.") from None
    except subprocess.CalledProcessError as error:
        raise WorkFailed(
            f"git {arguments[0]} failed: {error.stderr.decode(errors='replace').strip()}"
        ) from None
    return done.stdout.decode(errors="replace")


def _print_end(told: dict[str, Any], folder: Path, *, kept: bool, stays: bool) -> None:
    output.notice("")
    output.payload(_git(folder, "diff", "--stat").rstrip())
    output.payload(
        f"tests: {told['tests_before']} before, {told['tests_after']} after; {told['jobs']} jobs"
    )
    if told["error"] is not None:
        output.notice(f"{told['error']['type']}: {told['error']['message']}")
    if kept:
        output.notice(f"\nNext: fanout tree {told['root_id']} · fanout ps --all · fanout down")
    if stays:
        output.notice(f"The sample stays in {folder}: git -C {folder} diff")
    else:
        output.notice(
            "\nNext: fanout demo --keep · fanout run 'YOUR GOAL' --workspace DIR · fanout doctor"
        )
