"""`init`: asks for what a first run needs, writes it, and makes that run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fanout.orchestrator.cli.commands.bundled_examples import DEMO, find_example
from fanout.orchestrator.cli.commands.setup.first_files import (
    EXAMPLE_AGENT,
    Answers,
    has_key,
    usable_key,
    write_files,
)
from fanout.orchestrator.cli.commands.setup.images import run_program
from fanout.orchestrator.cli.commands.setup.questions import Choice, ask_secret, choose, may_ask
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from fanout.orchestrator.cli.terminal.options import SandboxKind
from fanout.orchestrator.configuration.configuration_file import (
    ConfigurationFile,
    configuration_path,
)
from fanout.orchestrator.configuration.settings import (
    SandboxSettings,
    Settings,
    load_settings,
)
from fanout.orchestrator.embedded.python_process import python_argv
from fanout.orchestrator.embedded.sandbox_check import ImagesMissing, NoSandbox, require_sandbox

GOAL = "Say in a few sentences what this folder is for and how its files work together."
"""Of the first run: an answer that shows that model, key, sandbox and agent work."""

NEW_AGENT = "an agent of your own: fanout agents new NAME"


def init(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model: gemini-…, claude-…, gpt-…, or provider/model through LiteLLM."
        ),
    ] = None,
    sandbox: Annotated[
        SandboxKind | None,
        typer.Option(
            help="docker isolates what agents run; local runs it as you, isolated by nothing."
        ),
    ] = None,
    key_stdin: Annotated[
        bool,
        typer.Option("--key-stdin", help="Read the model's key from standard input, not asked."),
    ] = False,
    run: Annotated[
        bool | None,
        typer.Option("--run/--no-run", help="Make a first run at the end; default: ask."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a configuration that exists.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Ask nothing: defaults, images are built, and the run is made."
        ),
    ] = False,
) -> None:
    """Set fanout up: model, key, sandbox and images, an example agent, a first run.

    It asks for what no option says. Without a terminal, or with --yes, it asks nothing: then the
    key comes from the environment or --key-stdin. Writes config.toml, agents/explainer.yaml and, if
    a key is given, .env beside it, which only you can read. Nothing that exists is replaced without
    a question or --force. Exit code: that of the first run, if one is made.
    """
    place = _place()
    asking = may_ask() and not yes and not key_stdin
    replace = _may_replace(place, asking=asking, force=force)
    if not replace:
        kept = load_settings()
        model, sandbox = kept.model, SandboxKind(kept.sandbox.provider)
    answers = (
        _asked(place, model, sandbox) if asking else _given(place, model, sandbox, piped=key_stdin)
    )
    for path in write_files(place, answers, replace=replace):
        output.payload(f"Wrote {path}")
    is_ready = _prepare_images(answers, asking=asking, build=yes)
    wanted = yes if run is None and not asking else run
    if _makes_first_run(answers, place, asking=asking, wanted=wanted, is_ready=is_ready):
        raise typer.Exit(_first_run() if is_ready else ExitCode.UNREACHABLE)
    output.notice(f"Next: fanout run 'YOUR QUESTION' --agent {EXAMPLE_AGENT} · {NEW_AGENT}")


def _place() -> ConfigurationFile:
    path = configuration_path()
    if path is None:
        raise UsageProblem("There is no folder for the configuration: set HOME, or say --config.")
    return ConfigurationFile(path)


def _may_replace(place: ConfigurationFile, *, asking: bool, force: bool) -> bool:
    """Return whether the configuration is replaced, if there is one.

    Raises:
        UsageProblem: There is one, and nobody can be asked.
        typer.Exit: The person stops.
    """
    if force or not place.path.exists():
        return True
    if not asking:
        raise UsageProblem(f"{place.path} exists: say --force to replace it, or edit it.")
    answer = choose(
        f"{place.path} exists.",
        [
            Choice("keep", "leave it; only the key and the example agent are written"),
            Choice("replace", "write a new one"),
            Choice("stop", "change nothing"),
        ],
    )
    if answer == "stop":
        raise typer.Exit(ExitCode.DONE)
    return answer == "replace"


def _given(
    place: ConfigurationFile, model: str | None, sandbox: SandboxKind | None, *, piped: bool
) -> Answers:
    """Return the answers of the options and the environment.

    Raises:
        UsageProblem: There is no key, or the piped one is none.
        ModelNotConfigured: The model is unknown, or its package is missing.
    """
    from fanout.orchestrator.deep_agent import (  # noqa: PLC0415 - slow import
        ModelNotConfigured,
        key_variable,
    )

    chosen = model or str(Settings.model_fields["model"].default)
    name = key_variable(chosen)
    key = usable_key(sys.stdin.readline()) if piped and name else None
    try:
        _require_model(place, chosen, name, key)
    except ModelNotConfigured as problem:
        if name is None or key or has_key(place, name):
            raise
        raise UsageProblem(f"{problem} Or pipe it: fanout init --key-stdin < FILE") from None
    return Answers(chosen, str(sandbox or SandboxKind.DOCKER), name, key)


def _asked(place: ConfigurationFile, model: str | None, sandbox: SandboxKind | None) -> Answers:
    """Return the answers of a person, who is asked again for a model that cannot be used."""
    from fanout.orchestrator.deep_agent import (  # noqa: PLC0415 - slow import
        ModelNotConfigured,
        key_variable,
    )

    while True:
        chosen = model or _ask_model()
        name = key_variable(chosen)
        key = _ask_key(place, name) if name else None
        try:
            _require_model(place, chosen, name, key)
        except ModelNotConfigured as problem:
            output.notice(str(problem))
            if name and not key and not has_key(place, name):
                output.notice(f"Put it into {place.env} later, as {name}=…")
                break
            model = None
            continue
        break
    return Answers(chosen, str(sandbox or _ask_sandbox()), name, key)


def _ask_model() -> str:
    output.notice("The model: gemini-…, claude-…, gpt-…, or provider/model through LiteLLM.")
    default = str(Settings.model_fields["model"].default)
    return str(typer.prompt("Model", default=default, err=True)).strip()


def _ask_key(place: ConfigurationFile, name: str) -> str | None:
    """Return a key that a person types, unseen; None if there is one already, or none is typed."""
    if has_key(place, name):
        output.notice(f"{name} is set already.")
        return None
    output.notice(f"The key is kept in {place.env}, which only you can read; empty: later.")
    while typed := ask_secret(name):
        try:
            return usable_key(typed)
        except UsageProblem as problem:
            output.notice(str(problem))
    return None


def _ask_sandbox() -> str:
    try:
        asyncio.run(require_sandbox(_only_sandbox(SandboxKind.DOCKER)))
    except ImagesMissing:
        pass  # they are offered later
    except NoSandbox as problem:
        output.notice(str(problem))
    choices = [
        Choice(str(SandboxKind.DOCKER), "isolates what agents run; needs a Docker engine"),
        Choice(str(SandboxKind.LOCAL), "runs it as you, isolated by nothing: for trials"),
    ]
    return choose("Where agents run their commands:", choices)


def _require_model(place: ConfigurationFile, model: str, name: str | None, key: str | None) -> None:
    """Return if the model can be used with its key; nothing is sent to it.

    Raises:
        ModelNotConfigured: The model is unknown, or its key or package is missing.
    """
    from fanout.orchestrator.deep_agent import resolve_model  # noqa: PLC0415 - slow import

    if name is None or os.environ.get(name) or not (key or has_key(place, name)):
        resolve_model(model, agent_name=EXAMPLE_AGENT)
        return
    os.environ[name] = "kept in the file"  # only its presence is looked at
    try:
        resolve_model(model, agent_name=EXAMPLE_AGENT)
    finally:
        del os.environ[name]


def _prepare_images(answers: Answers, *, asking: bool, build: bool) -> bool:
    """Build images that are missing, if a person says so; return whether a run can start."""
    try:
        asyncio.run(require_sandbox(_only_sandbox(answers.sandbox)))
    except ImagesMissing:
        question = "The images of sandboxes are not built yet. Build them now (about 3 minutes)?"
        if build or (asking and typer.confirm(question, default=True, err=True)):
            return run_program(["build"], quiet=True) == ExitCode.DONE
        output.notice("Before the first run: fanout images build")
        return False
    except NoSandbox as problem:
        output.notice(f"Before the first run: {problem}")
        return False
    return True


def _only_sandbox(provider: str) -> Settings:
    """Return settings that say nothing but this: the configuration may not be written yet."""
    sandbox = SandboxSettings.model_validate({"provider": str(provider)})
    return Settings.model_construct(sandbox=sandbox)


def _makes_first_run(
    answers: Answers, place: ConfigurationFile, *, asking: bool, wanted: bool | None, is_ready: bool
) -> bool:
    """Return whether the example agent is to run; a person is asked only if that can work."""
    if answers.key_name is not None and not has_key(place, answers.key_name):
        return False
    if wanted is None and asking and is_ready:
        question = f"Make a first run now? {EXAMPLE_AGENT} reads a small sample and explains it."
        return bool(typer.confirm(question, default=True, err=True))
    return bool(wanted)


def _first_run() -> int:
    """Run the example agent on a sample; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="fanout-first-run-") as folder:
        sample = Path(folder) / "sample"
        find_example(DEMO).copy_workspace(sample)
        options = ["--agent", EXAMPLE_AGENT, "--workspace", str(sample), "--no-land", "--yes"]
        argv = python_argv("fanout", "run", GOAL, *options)
        ended = subprocess.run(argv, env=dict(os.environ), check=False)  # noqa: S603 - our own
    if ended.returncode == 0:
        output.notice(f"It works. Next: fanout run 'YOUR GOAL' --workspace DIR · {NEW_AGENT}")
    return ended.returncode if ended.returncode >= 0 else ExitCode.WORK_FAILED
