"""`agents` and `config`: print the agent definitions and the settings in force."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel, SecretStr
from pydantic_settings import EnvSettingsSource

from ...configuration.agent_definitions import AgentDefinition, load_agent_definitions
from ...configuration.setting_errors import HIDDEN
from ...configuration.settings import (
    PREFIX,
    Settings,
    load_settings,
    settings_of_files,
    without_password,
)
from ..checks.limits import LimitSource, written
from ..terminal import output
from ..terminal.options import AsJson


def list_agents(*, as_json: bool) -> None:
    """Print the agents that can run jobs, for `fanout agents`."""
    settings = load_settings()
    definitions = load_agent_definitions(settings.agents_dir).values()
    if as_json:
        dumped = [one.model_dump(mode="json", exclude_none=True) for one in definitions]
        output.document({"agents": dumped})
        return
    rows = [
        (
            one.name,
            _model(one, settings.model),
            ",".join(one.subagents) or "-",
            output.one_line(one.description),
        )
        for one in definitions
    ]
    output.table(("AGENT", "MODEL", "MAY CALL", "FOR"), rows, elastic=(-2, -1))


def _model(definition: AgentDefinition, default: str) -> str:
    """Return what does an agent's jobs: a model, a remote agent or a coding agent."""
    if definition.a2a is not None:
        return f"a2a {urlsplit(definition.a2a.url).netloc}"
    if definition.acp is not None:
        return f"acp {PurePosixPath(definition.acp.command[0]).name}"
    return definition.model or default


def config(
    limits: Annotated[
        bool,
        typer.Option(
            "--limits",
            help="Print every limit instead: name, value with unit, module and reason.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the settings in force, without secrets.

    Each line has the environment variable, the value and its source: environment, the path of a
    file, or default. The files are the one of --config or FANOUT_CONFIG, otherwise
    ~/.config/fanout/config.toml, and the .env next to it.
    """
    if limits:
        _print_limits(as_json=as_json)
        return
    rows = list(effective_settings(load_settings()))
    if as_json:
        keys = ("name", "value", "source")
        output.document({"settings": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    output.table(
        ("NAME", "VALUE", "SOURCE"),
        [(name, _written(value), source) for name, value, source in rows],
        elastic=(-2,),
    )


def _print_limits(*, as_json: bool) -> None:
    source = LimitSource()
    in_force = {name: value for name, value, _ in effective_settings(load_settings())}
    settings = [limit._replace(value=in_force[limit.name]) for limit in source.settings()]
    found = [*settings, *source.constants()]
    if as_json:
        output.document({"limits": [limit._asdict() for limit in found]})
        return
    rows = [(limit.title, written(limit), limit.where, limit.reason) for limit in found]
    output.table(("LIMIT", "VALUE", "WHERE", "WHY"), rows, elastic=(-1,))


def effective_settings(settings: Settings) -> Iterator[tuple[str, Any, str]]:
    """Yield environment variable, value without secrets, and source of every setting."""
    sources: list[tuple[str, Mapping[str, Any]]] = [
        ("environment", EnvSettingsSource(Settings)()),
        *settings_of_files(Settings),
    ]
    for path, value in _leaves(settings, ()):
        source = next((name for name, given in sources if _has(given, path)), "default")
        yield PREFIX + "__".join(path).upper(), shown(value), source


def shown(value: Any) -> Any:
    """Return a setting's value for printing, without secrets and passwords in URLs."""
    match value:
        case SecretStr():
            return HIDDEN
        case str() if "://" in value:
            return without_password(value)
        case None | bool() | int() | float():
            return value
        case tuple():
            return [shown(item) for item in value]
        case BaseModel():
            return {name: shown(item) for name, item in value}
        case dict():
            return {name: shown(item) for name, item in value.items()}
        case _:
            return str(value)


def _leaves(section: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _has(given: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    inner: Any = given
    for name in path:
        if not isinstance(inner, Mapping) or name not in inner:
            return False
        inner = inner[name]
    return True


def _written(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
