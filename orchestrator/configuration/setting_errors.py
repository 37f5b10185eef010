"""Messages about invalid settings: the name, its place and the allowed values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from dotenv import dotenv_values
from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from ..spelling import nearest
from .configuration_file import (
    SETTINGS_PREFIX,
    VARIABLE,
    configuration_file,
)

SECRET_WORDS = ("password", "secret", "key", "token", "redis_url", "basic_auth")
HIDDEN = "(hidden)"
"""The text that is shown instead of a secret."""

EXAMPLES = {
    "FANOUT_API__ALLOWED_ORIGINS": '["https://app.example.com"]',
    "FANOUT_API__KEYS": '{"ci": {"key": "…", "scopes": ["submit", "read"]}}',
    "FANOUT_API__TRUSTED_HOSTS": '["fanout.example.com"]',
    "FANOUT_API__TRUSTED_PROXIES": '["192.0.2.1"]',
    "FANOUT_APPROVERS": '["alice", "bob"]',
    "FANOUT_CEILINGS__NETWORK": '["pypi.org"]',
    "FANOUT_LIMITS__NETWORK": '["pypi.org"]',
    "FANOUT_MODELS": '{"gemini-2.5-flash": {"requests_per_minute": 60}}',
    "FANOUT_NOTIFICATIONS__ALLOWED_HOSTS": '["hooks.internal", "127.0.0.1:8000"]',
    "FANOUT_QUEUE__SIGNING_KEYS": '["0123456789abcdef"]',
    "FANOUT_SECRETS": '{"GIT_TOKEN": "…"}',
    "FANOUT_TENANTS": '{"team-a": {"weight": 3, "jobs": 20}}',
}
"""Examples of the variables that are JSON."""

OF_OTHERS = frozenset(
    f"{SETTINGS_PREFIX}{name}"
    for name in (
        *("BLOBS_FOLDER", "DASHBOARD_PASSWORD", "FLOWER_PORT", "IMAGE_BASE", "REDIS_IMAGE"),
        *("REDIS_MAXMEMORY", "REDIS_MEMORY", "REDIS_PASSWORD", "REDIS_PORT", "SANDBOX_BASE"),
        *("SERVER_PASSWORD", "SERVER_PORT", "USER", "WORKER_MEMORY", "WORKER_PASSWORD"),
        *("JOB_AGENT", "JOB_EVENT", "JOB_ID", "JOB_REASON", "JOB_ROOT_ID", "JOB_STATE"),
    )
)
"""Variables of docker-compose.yml, the Makefile and the hook, some of which are spelt like
settings."""

SURELY_MEANT = 0.8
"""The similarity of a variable to a setting from which on it is a misspelt setting, and not a
variable of another program with the same prefix."""

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def setting_variables(model: type[BaseModel], prefix: str = SETTINGS_PREFIX) -> Iterator[str]:
    """Yield the environment variables of the settings, including those of sections."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        yield variable
        if isinstance(section := field.annotation, type) and issubclass(section, BaseModel):
            yield from setting_variables(section, f"{variable}__")


def misspelt(model: type[BaseModel], variables: Iterable[str]) -> list[str]:
    """Return a sentence for each variable that is not a setting, but is spelt almost like one."""
    known = list(setting_variables(model))
    top = {name for name in known if "__" not in name} | OF_OTHERS | {VARIABLE}
    problems = []
    for variable in sorted({name.upper() for name in variables}):
        begin = variable.partition("__")[0]
        if not variable.startswith(SETTINGS_PREFIX) or begin in top:
            continue  # a name in a section that exists is checked with the section
        bare = [name.removeprefix(SETTINGS_PREFIX) for name in known]
        if near := nearest(variable.removeprefix(SETTINGS_PREFIX), bare, SURELY_MEANT):
            problems.append(
                f"There is no setting {variable}. Did you mean {SETTINGS_PREFIX}{near}?"
            )
    return problems


def not_json(error: SettingsError, given: Mapping[str, str]) -> str:
    """Return a sentence for a variable that should be JSON, of those that were read."""
    for variable, value in given.items():
        example = EXAMPLES.get(variable.upper())
        if example and not _is_json(value):
            return f"{variable} is not JSON: write it like {variable}='{example}'."
    return f"The settings cannot be read: {error}."


def sentences(
    model: type[BaseModel], error: ValidationError, given: Iterable[str], toml: Path | None
) -> str:
    """Return a line for each setting that is not allowed.

    Args:
        model: The settings.
        error: The error of reading them.
        given: The variables that were read; other values are from the file.
        toml: The configuration file.
    """
    variables = {name.upper() for name in given}
    lines: dict[str, str] = {}
    for detail in error.errors():
        steps = [str(step) for step in detail["loc"] if "[" not in str(step)]  # of a union
        name = f"{SETTINGS_PREFIX}{'__'.join(steps)}".upper()
        section = f"{SETTINGS_PREFIX}{steps[0]}".upper() if steps else name
        if toml is not None and not {name, section} & variables:
            place = f" ({toml}:{line_of(toml, steps)})"
        else:
            place = ""
        lines.setdefault(name, _sentence(model, name, place, detail))
    return "\n".join(lines.values())


def _sentence(model: type[BaseModel], name: str, place: str, detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        section, _, last = name.rpartition("__")
        keys = [each.upper() for each in _keys_beside(model, detail["loc"])]
        near = nearest(last, keys)
        known = f" There are {', '.join(f'{section}__{key}' for key in keys)}." if keys else ""
        question = f" Did you mean {section}__{near}?" if near else known
        return f"There is no setting {name}{place}.{question}"
    secret = any(word in name.lower() for word in SECRET_WORDS)
    value = HIDDEN if secret else repr(detail["input"])
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error" and isinstance(detail["input"], Mapping):
        # A rule of a whole section, whose other values may be secrets.
        return f"{name}{place} is not allowed: {message}."
    is_form = name in EXAMPLES and detail["type"] != "value_error"
    form = f"; as JSON it is written like {EXAMPLES[name]}" if is_form else ""
    return f"{name}{place} is {value}, which is not allowed: {message}{form}."


def _keys_beside(model: Any, location: Sequence[int | str]) -> list[str]:
    """Return the names that may occur in place of the last one of a location."""
    for step in location[:-1]:
        fields = getattr(model, "model_fields", {})
        is_mapping = get_origin(model) is dict
        model = get_args(model)[1] if is_mapping else getattr(fields.get(step), "annotation", None)
    return list(getattr(model, "model_fields", ()))


def line_of(file: Path, steps: Sequence[str]) -> int:
    """Return the line, from 1, at which a TOML file sets a key; 1 if it is not found."""
    table: list[str] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _parts(header[1])
        elif (key := _KEY.match(line)) and [*table, *_parts(key[1])] == [*steps]:
            return number
    return 1


def given_variables() -> dict[str, str]:
    """Return fanout's variables of the environment, and those that only the `.env` has.

    Raises:
        UnusableConfiguration: See `configuration_file`.
    """
    found = configuration_file()
    file = dotenv_values(found.env, interpolate=False) if found else {}
    return {
        name: value
        for name, value in {**file, **os.environ}.items()
        if value and name.upper().startswith(SETTINGS_PREFIX)
    }


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True
