"""Starts fanout's Python programs without imports from the working directory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pydantic import SecretStr

from ..bounded_process import import_path
from ..configuration.configuration_file import (
    VARIABLE,
    absolute,
    configuration_path,
    default_agents,
    export_keys,
)
from ..configuration.settings import PREFIX, Settings
from ..process_secrets import inherited_environment

_NO_DOTENV = {"PYTHON_DOTENV_DISABLED": "1", "ADK_DISABLE_LOAD_DOTENV": "1"}
"""The variables that disable libraries' search for a `.env` in the folders above; fanout's is next
to the configuration file."""

_KEYS = re.compile(
    r"KEY|TOKEN|SECRET|CREDENTIAL|PASSWORD|PROXY|URL|BASE|ENDPOINT|PROJECT|REGION|LOCATION|VERTEX"
    r"|API_|OLLAMA|CA_BUNDLE|CERT|AWS_"
)
"""Further names of variables by which models are reached."""

_NOT_OF_WORKERS: Any = {
    **dict.fromkeys(("redis_url", "blobs_url", "redis_memory_bytes", "state_dir"), True),
    **dict.fromkeys(("workspace", "api", "flower", "notifications", "secrets", "agents_dir"), True),
    "embedded_idle_seconds": True,
    "worker": {"pool"},
}
"""The settings of other processes, those that are unique in a state folder, and those that workers
read again."""

HELPER_SECONDS = 20.0
"""The time for a helper, whose start takes seconds on a busy machine; it waits 1.5 s for the
engine."""


class Ended(NamedTuple):
    """The outcome of a helper."""

    exit_code: int
    output: str
    reason: str
    """The last line of its error output."""


async def run_helper(module: str, *arguments: str) -> Ended:
    """Run a helper program that queries the Docker engine and prints the answer.

    Args:
        module: its module.
        arguments: its arguments.

    Raises:
        TimeoutError: it does not end within `HELPER_SECONDS`.
    """
    child = await asyncio.create_subprocess_exec(
        *python_argv(module, *arguments),
        env=helper_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(HELPER_SECONDS):
            output, errors = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    last = errors.decode(errors="replace").strip().splitlines()[-1:]
    return Ended(child.returncode or 0, output.decode(errors="replace"), "".join(last))


def python_argv(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module; `-P` excludes the working directory from its path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def become(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this process by a Python program, which then receives signals directly.

    Args:
        argv: The command, as returned by `python_argv`.
        env: The program's environment.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, env)  # noqa: S606 - our own program, no shell


def program_environment() -> dict[str, str]:
    """Return the environment of a program that replaces this one: all of it, and a safe path."""
    return {**os.environ, **helper_environment()}


def helper_environment() -> dict[str, str]:
    """Return the environment of a Python program that needs no settings and no keys."""
    ours = {"PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1", **_NO_DOTENV}
    return inherited_environment() | ours


def keeper_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a process that ends the services: the settings' files, no keys."""
    ours = helper_environment() | {
        f"{PREFIX}STATE_DIR": str(settings.state_dir),
        f"{PREFIX}REDIS_PREFIX": settings.redis_prefix,
    }
    return ours | _configuration_file()


def child_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a worker: that of this process, which it needs for its models.

    It has a safe path, the same configuration file, the addresses of Redis and the blobs, and the
    variables of an example. The worker hides it when it starts; see `process_secrets`. Keys of the
    `.env` are left out: the worker reads that file itself, again when it changes.
    """
    ours = helper_environment() | {
        f"{PREFIX}REDIS_URL": settings.redis_url or "",
        f"{PREFIX}REDIS_PREFIX": settings.redis_prefix,
        f"{PREFIX}BLOBS_URL": settings.blobs,
        f"{PREFIX}STATE_DIR": str(settings.state_dir),
        f"{PREFIX}SANDBOX__PROVIDER": settings.sandbox.provider,
        f"{PREFIX}WORKER__LEASE_SECONDS": str(settings.worker.lease_seconds),
    }
    if folder := _own_agents(settings):
        ours[f"{PREFIX}AGENTS_DIR"] = folder
    of_file = export_keys()
    kept = {name: value for name, value in os.environ.items() if name not in of_file}
    return {**kept, **ours, **_configuration_file()}


def _configuration_file() -> dict[str, str]:
    """Return the variable that names the configuration file, if it is set; its path is absolute."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return {}
    return {VARIABLE: str(absolute(Path(named))) if named else ""}


def fingerprint(
    settings: Settings, environment: Mapping[str, str], earlier: str | None = None
) -> str:
    """Return a text that is the same for workers with the same settings and keys.

    It reveals nothing about their values. Values that a worker reads again are left out: keys of
    the `.env` and the contents of the folder of agents.

    Args:
        settings: The worker's settings.
        environment: The variables, as for `child_environment`.
        earlier: A fingerprint to compare with; None: none.
    """
    salt = (earlier or "").partition("-")[0] or secrets.token_hex(16)
    exported = sorted(item for item in environment.items() if _is_key(item[0]))
    given = [
        settings.model_dump(exclude=_NOT_OF_WORKERS),
        str(configuration_path()),
        _own_agents(settings),
        exported,
    ]
    text = json.dumps(given, sort_keys=True, default=_as_text)
    digest = hashlib.scrypt(text.encode(), salt=salt.encode(), n=2**10, r=8, p=1)
    return f"{salt}-{digest.hex()}"


def _is_key(name: str) -> bool:
    """Return whether a variable is relevant to a worker without being one of its settings."""
    if name.startswith(PREFIX):
        return name.startswith(f"{PREFIX}SECRETS__")
    return name not in _NO_DOTENV and bool(_KEYS.search(name))


def _as_text(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _own_agents(settings: Settings) -> str:
    """Return the folder of agents; empty if it is next to the configuration file.

    Workers notice when that one is created or deleted.
    """
    folder = settings.agents_dir
    return "" if folder is None or folder == default_agents() else str(folder.resolve())
