"""`init`: asks for what a first run needs, writes it, and makes that run.

It writes the configuration, the key, and an example agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from dotenv import dotenv_values, set_key

from ...configuration.configuration_file import (
    ConfigurationFile,
    configuration_path,
)
from ...configuration.settings import (
    SandboxSettings,
    Settings,
    load_settings,
)
from ...embedded.python_process import python_argv
from ...embedded.sandbox_check import ImagesMissing, NoSandbox
from ...private_files import make_private_folder
from ..terminal import output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.options import SandboxKind
from ..terminal.questions import (
    Choice,
    ask,
    ask_secret,
    choose,
    confirm,
    may_ask,
)
from ..terminal.waiting import waiting
from .bundled_examples import DEMO, find_example
from .images import check_sandbox, run_program
from .own_server import (
    KEY_VARIABLE,
    KeyWanted,
    NoModelServer,
    OwnServer,
    ServerProtocol,
    find_server,
    is_address,
    list_protocols,
)

GOAL = "Say in a few sentences what this folder is for and how its files work together."
"""The goal of the first run: an answer that shows that model, key, sandbox and agent work."""
MOST_LISTED = 20
"""The most models of a server that are listed: a screen; some have hundreds."""

NEW_AGENT = "your own agent: fanout agents new NAME"
EXAMPLE_AGENT = "explainer"

_OWNER_ONLY = 0o600

_CONFIGURATION = """\
# Written by `fanout init`. `fanout config` prints all settings and where each comes from.

# The model of agents whose definition names none.
model = {model}

[sandbox]
# docker isolates what agents run; local runs it as you, without isolation.
provider = {sandbox}
"""

_AGENT = f"""\
# An agent of your own: fanout run "YOUR QUESTION" --agent {EXAMPLE_AGENT}
# The file's name is its name. Change it, or copy it and begin another one; `fanout agents` lists all.
name: {EXAMPLE_AGENT}
description: Explains what a folder is for and how its parts work together. Changes nothing.
# What it may use; leave the line out for all tools.
tools: [ls, read_file, glob, grep]
instruction: |
  You explain code to somebody who sees it for the first time.

  - Look at the files before you answer, and name the file for each thing that you say.
  - Say what it is for first, then how its parts work together.
  - Keep it short: a few sentences, unless you are asked for more.
limits: {{timeout_seconds: 600}}
"""


def init(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model: gemini-…, claude-…, gpt-…, one of the server of --base-url, or "
            "provider/model through LiteLLM."
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url",
            metavar="URL",
            help="The address of your own server with OpenAI's interface, such as "
            "http://localhost:11434 (Ollama, llama.cpp, vLLM, LM Studio); it needs no key. Models "
            "named claude-… and gemini-… are also tried as Anthropic's and Google's.",
        ),
    ] = None,
    sandbox: Annotated[
        SandboxKind | None,
        typer.Option(
            help="docker isolates what agents run; local runs it as you, without isolation."
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
    """Set fanout up: a model, its key, the sandbox, a first run.

    It reads the models of your own server, makes one small request to the chosen one, and prints
    whether it streams and takes tools.

    It asks for values without an option. Without a terminal, or with --yes, it asks nothing: then
    the key comes from the environment or --key-stdin. Writes config.toml, agents/explainer.yaml
    and, if a key or an address is given, .env next to it, which only you can read. Nothing that
    exists is replaced without a question or --force. Exit code: that of the first run, if one is
    made.
    """
    place = _place()
    asking = may_ask() and not yes and not key_stdin
    replace = _may_replace(place, asking=asking, force=force)
    if not replace:
        kept = load_settings()
        model, sandbox = kept.model, SandboxKind(kept.sandbox.provider)
    wanted_model = WantedModel(model, base_url)
    answers = (
        _asked(place, wanted_model, sandbox)
        if asking
        else _given(place, wanted_model, sandbox, piped=key_stdin)
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
        raise UsageProblem("There is no folder for the configuration: set HOME, or use --config.")
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
        raise UsageProblem(f"{place.path} exists: use --force to replace it, or edit it.")
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


class WantedModel(NamedTuple):
    """The options about the model."""

    name: str | None
    base_url: str | None
    """The address of its server; None: the service's own."""


def _given(
    place: ConfigurationFile, wanted: WantedModel, sandbox: SandboxKind | None, *, piped: bool
) -> Answers:
    """Return the answers of the options and the environment.

    Raises:
        UsageProblem: There is no key, or the piped one is not valid, or the server does not answer.
        ModelNotConfigured: The model is unknown, or its package is missing.
    """
    from ...deep_agent import (  # noqa: PLC0415 - slow import
        ModelNotConfigured,
        key_variable,
    )

    where = str(sandbox or SandboxKind.DOCKER)
    if wanted.base_url is not None:
        key = usable_key(sys.stdin.readline()) if piped else None
        return _on_server(wanted.base_url, wanted.name, key, asking=False)._replace(sandbox=where)
    chosen = wanted.name or str(Settings.model_fields["model"].default)
    name = key_variable(chosen)
    key = usable_key(sys.stdin.readline()) if piped and name else None
    try:
        _require_model(place, chosen, name, key)
    except ModelNotConfigured as problem:
        if name is None or key or has_key(place, name):
            raise
        raise UsageProblem(f"{problem} Or pipe it: fanout init --key-stdin < FILE") from None
    return Answers(chosen, where, name, key)


def _asked(place: ConfigurationFile, wanted: WantedModel, sandbox: SandboxKind | None) -> Answers:
    """Return the answers of a person, who is asked again if a model cannot be used."""
    from ...deep_agent import ModelNotConfigured  # noqa: PLC0415 - slow import

    while True:
        named = wanted.base_url or wanted.name or _ask_model()
        try:
            if wanted.base_url or is_address(named):
                answers = _on_server(named, wanted.name, None, asking=True)
            else:
                answers = _at_service(place, named)
        except (ModelNotConfigured, UsageProblem) as problem:
            output.notice(str(problem))
            wanted = WantedModel(None, None)
            continue
        return answers._replace(sandbox=str(sandbox or _ask_sandbox()))


def _at_service(place: ConfigurationFile, model: str) -> Answers:
    """Return a model of a service with its key, after one small request to it.

    Raises:
        ModelNotConfigured: The model is unknown, or its package is missing.
    """
    from ...deep_agent import (  # noqa: PLC0415 - slow import
        ModelNotConfigured,
        key_variable,
    )

    name = key_variable(model)
    key = _ask_key(place, name) if name else None
    try:
        _require_model(place, model, name, key)
    except ModelNotConfigured as problem:
        if not name or key or has_key(place, name):
            raise
        output.notice(str(problem))
        output.notice(f"Put it into {place.env} later, as {name}=…")
    else:
        if not model.startswith("scripted:"):
            _try(model, {name: key} if name and key else {})
    return Answers(model, "", name, key)


def _on_server(base_url: str, model: str | None, key: str | None, *, asking: bool) -> Answers:
    """Return a model of a person's own server, after one small request to it.

    Args:
        base_url: The server's address, in any spelling.
        model: The model; None: the only one, or the one that the person chooses.
        key: The server's key, if it wants one.
        asking: Whether a person can be asked.

    Raises:
        UsageProblem: Nothing answers there, or the model does not.
    """
    from ...deep_agent import ModelNotConfigured  # noqa: PLC0415 - slow import

    try:
        with waiting(f"asking {output.one_line(base_url)} for its models"):
            server = find_server(base_url, key or os.environ.get(KEY_VARIABLE))
    except KeyWanted as problem:
        if not asking:
            pipe = "pipe another one" if key else "pipe it"
            raise UsageProblem(
                f"{problem} Or {pipe}: fanout init --base-url {base_url} --key-stdin < FILE"
            ) from None
        output.notice(str(problem))
        if not (typed := ask_secret(KEY_VARIABLE)):
            raise UsageProblem("Without a key it does not answer.") from None
        return _on_server(base_url, model, usable_key(typed), asking=True)
    except NoModelServer as problem:
        raise UsageProblem(str(problem)) from None
    chosen = model or _choose_model(server, asking=asking)
    said = []
    for protocol in list_protocols(server, chosen):
        variables = {protocol.address_variable: protocol.address}
        if given := key or protocol.key_without_one:
            variables[protocol.key_variable] = given
        try:
            trial = _try(protocol.model, variables)
        except ModelNotConfigured as problem:
            trial = _Tried(is_answer=False, said=str(problem))
        if trial.is_answer:
            _warn_of_exported(protocol)
            key_name = protocol.key_variable if key else None
            address = (protocol.address_variable, protocol.address)
            return Answers(protocol.model, "", key_name, key, *address)
        said.append(trial.said)
    raise UsageProblem(f"{server.address} is there, but the model did not answer: {' '.join(said)}")


def _warn_of_exported(protocol: ServerProtocol) -> None:
    exported = os.environ.get(protocol.address_variable)
    if exported and exported != protocol.address:
        output.notice(
            f"{protocol.address_variable} is {exported} in this shell, which has priority over "
            "the file: unset it."
        )


def _choose_model(server: OwnServer, *, asking: bool) -> str:
    """Return the only model of a server, or the one that a person chooses.

    Raises:
        UsageProblem: There are several, or none is known, and nobody can be asked.
    """
    models = server.models
    if len(models) == 1:
        output.notice(f"{server.address} has one model: {models[0]}")
        return models[0]
    if not asking:
        listed = ", ".join(models[:MOST_LISTED]) + (" …" if len(models) > MOST_LISTED else "")
        found = f"has {len(models)} models: {listed}" if models else "lists no models"
        raise UsageProblem(f"{server.address} {found}. Choose one: --model NAME")
    output.notice(f"{server.address} has {len(models) or 'no'} models:")
    for number, model in enumerate(models[:MOST_LISTED], start=1):
        output.notice(f"  {number}  {model}")
    if len(models) > MOST_LISTED:
        output.notice(f"  … and {len(models) - MOST_LISTED} more; type the name of one")
    default = models[0] if models else None
    typed = ask("Model of the server", default=default)
    is_number = typed.isdecimal() and 0 < int(typed) <= len(models) and typed not in models
    return models[int(typed) - 1] if is_number else typed


class _Tried(NamedTuple):
    is_answer: bool
    said: str


def _try(model: str, variables: Mapping[str, str]) -> _Tried:
    """Make one small request to a model, and print the result.

    Raises:
        ModelNotConfigured: The model's package is missing.
    """
    from ...deep_agent import try_model  # noqa: PLC0415 - slow import
    from ..checks.doctor_checks import is_weak, trial_sentence  # noqa: PLC0415 - slow import

    output.notice(f"Asking {model} for a small answer …")
    with _environment(variables), waiting(f"waiting for an answer of {model}"):
        trial = asyncio.run(try_model(model))
    said = trial_sentence(model, trial)
    output.notice(said)
    if is_weak(trial):
        output.notice("WARNING: agents work by calling tools: another model will get more done.")
    return _Tried(not trial.fault, said)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process while the context is open."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _ask_model() -> str:
    output.notice(
        "The model: gemini-…, claude-…, gpt-…, or provider/model through LiteLLM. For one on "
        "your own\nserver (Ollama, llama.cpp, vLLM, LM Studio …): its address, such as "
        "http://localhost:11434."
    )
    default = str(Settings.model_fields["model"].default)
    return ask("Model", default=default)


def _ask_key(place: ConfigurationFile, name: str) -> str | None:
    """Return a key that a person types, unseen; None if there is one already, or no input."""
    if has_key(place, name):
        output.notice(f"{name} is set already.")
        return None
    output.notice(
        f"The key is kept in {place.env}, which only you can read. Leave it empty to add it later."
    )
    while typed := ask_secret(name):
        try:
            return usable_key(typed)
        except UsageProblem as problem:
            output.notice(str(problem))
    return None


def _ask_sandbox() -> str:
    try:
        check_sandbox(_only_sandbox(SandboxKind.DOCKER))
    except ImagesMissing:
        pass  # they are offered later
    except NoSandbox as problem:
        output.notice(str(problem))
    choices = [
        Choice(str(SandboxKind.DOCKER), "isolates what agents run; needs a Docker engine"),
        Choice(str(SandboxKind.LOCAL), "runs it as you, without isolation: for trials"),
    ]
    return choose("Where agents run their commands:", choices)


def _require_model(place: ConfigurationFile, model: str, name: str | None, key: str | None) -> None:
    """Return if the model can be used with its key; nothing is sent to it.

    Raises:
        ModelNotConfigured: The model is unknown, or its key or package is missing.
    """
    from ...deep_agent import resolve_model  # noqa: PLC0415 - slow import

    is_kept = name and not os.environ.get(name) and (key or has_key(place, name))
    # Only its presence is checked.
    with _environment({name: "kept in the file"} if name and is_kept else {}):
        resolve_model(model, agent_name=EXAMPLE_AGENT)


def _prepare_images(answers: Answers, *, asking: bool, build: bool) -> bool:
    """Build missing images if a person agrees; return whether a run can start."""
    try:
        check_sandbox(_only_sandbox(answers.sandbox))
    except ImagesMissing:
        question = "The images of sandboxes are not built yet. Build them now (about 3 minutes)?"
        if build or (asking and confirm(question, default=True)):
            return run_program(["build"], quiet=True) == ExitCode.DONE
        output.notice("Before the first run: fanout images build")
        return False
    except NoSandbox as problem:
        output.notice(f"Before the first run: {problem}")
        return False
    return True


def _only_sandbox(provider: str) -> Settings:
    """Return settings with only this value: the configuration may not be written yet."""
    sandbox = SandboxSettings.model_validate({"provider": str(provider)})
    return Settings.model_construct(sandbox=sandbox)


def _makes_first_run(
    answers: Answers, place: ConfigurationFile, *, asking: bool, wanted: bool | None, is_ready: bool
) -> bool:
    """Return whether the example agent is to run; a person is only asked if it can work."""
    if answers.key_name is not None and not has_key(place, answers.key_name):
        return False
    if wanted is None and asking and is_ready:
        question = f"Make a first run now? {EXAMPLE_AGENT} reads a small sample and explains it."
        return confirm(question, default=True)
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


class Answers(NamedTuple):
    """The choices of a person."""

    model: str
    sandbox: str
    key_name: str | None = None
    """The variable of the model's key; None: it needs none."""
    key: str | None = None
    """The value of the key; None: it is in the environment or in the `.env` already, or it is added
    later."""
    address_name: str | None = None
    """The variable of the address of the model's server; None: the service's own."""
    address: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """The variables for the `.env`."""
        found = {self.key_name: self.key, self.address_name: self.address}
        return {name: value for name, value in found.items() if name and value}


def agent_path(place: ConfigurationFile) -> Path:
    """Return the path of the example agent."""
    return place.agents / f"{EXAMPLE_AGENT}.yaml"


def write_files(place: ConfigurationFile, answers: Answers, *, replace: bool) -> list[Path]:
    """Write the files for the answers, and return their paths.

    Key and address are in a separate file that only its owner can read. The example agent is never
    replaced.

    Args:
        place: Where the configuration is.
        answers: Its content.
        replace: Whether an existing configuration is replaced.

    Raises:
        UsageProblem: A file cannot be written.
    """
    written = []
    text = _CONFIGURATION.format(
        model=json.dumps(answers.model, ensure_ascii=False), sandbox=json.dumps(answers.sandbox)
    )
    agent = agent_path(place)
    try:
        if not place.path.parent.exists():
            make_private_folder(place.path.parent)
        for name, value in answers.variables.items():
            _keep_variable(place.env, name, value)
        if answers.variables:
            written.append(place.env)
        if replace or not place.path.exists():
            place.path.write_text(text, encoding="utf-8")
            written.append(place.path)
        if not agent.exists():
            agent.parent.mkdir(exist_ok=True)
            agent.write_text(_AGENT, encoding="utf-8")
            written.append(agent)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        file = getattr(error, "filename", None) or place.path.parent
        raise UsageProblem(f"{file} cannot be written: {reason}.") from None
    return written


def has_key(place: ConfigurationFile, name: str) -> bool:
    """Return whether the `.env` or the environment has a key already, under any of its names."""
    names = (name, "GEMINI_API_KEY") if name == "GOOGLE_API_KEY" else (name,)
    if any(map(os.environ.get, names)):
        return True
    try:
        kept = dotenv_values(place.env, interpolate=False)
        return any(map(kept.get, names))
    except (OSError, ValueError):
        return False


def usable_key(text: str) -> str:
    """Return a key as it was typed or piped, without the white space around it.

    Raises:
        UsageProblem: It cannot be a key; the text does not contain it.
    """
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageProblem("That is not a key: a key is one line of letters, digits and signs.")
    return key


def _keep_variable(file: Path, name: str, value: str) -> None:
    """Set a variable in the `.env`; its other lines do not change."""
    if file.exists():
        file.chmod(_OWNER_ONLY)  # before it holds the key; the rewritten file has the same mode
    set_key(file, name, value, follow_symlinks=True)
    file.chmod(_OWNER_ONLY)
