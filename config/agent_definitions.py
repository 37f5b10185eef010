"""Who an agent is: `agents/<name>.yaml`, and a user's own folder beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, JsonValue, ValidationError, model_validator

from orchestrator.jobs.failures import UnknownAgent
from orchestrator.jobs.spec import AgentName, Limits, WireModel

SHIPPED_AGENTS = Path(__file__).parent / "agents"
GENERAL_PURPOSE = "general-purpose"
COORDINATOR = "coordinator"

Decision = Literal["approve", "edit", "reject", "respond"]


class InvalidAgentDefinition(ValueError):
    """A definition is not understood; the text names the file and the line."""


class AgentDefinition(WireModel):
    """One agent: prompt, model, tools and limits."""

    name: AgentName
    description: str = Field(min_length=1)
    """Shown to the coordinator, which chooses by it."""
    instruction: str = ""
    model: str | None = None
    """None takes the installation's model."""
    tools: tuple[str, ...] | None = None
    """Names of built-in tools; None gives all."""
    mcp_servers: tuple[dict[str, JsonValue], ...] = ()
    skills: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    interrupt_on: dict[str, bool | tuple[Decision, ...]] = Field(default_factory=dict)
    subagents: tuple[AgentName, ...] = ()
    """Which agents it may call."""
    image: str | None = None
    """None takes the installation's image."""
    limits: Limits = Limits()
    network: Literal["none"] | tuple[str, ...] | None = None
    output_schema: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _has_an_instruction(self) -> AgentDefinition:
        if not self.instruction.strip():
            raise ValueError("give instruction or instruction_file")
        return self

    def job_limits(self) -> Limits:
        """The definition's limits, its network among them."""
        return Limits(network=self.network).over(self.limits)


class AgentDefinitions(Mapping[str, AgentDefinition]):
    """The definitions of an installation by name, sorted."""

    def __init__(self, definitions: dict[str, AgentDefinition]) -> None:
        self._definitions = dict(sorted(definitions.items()))

    def __getitem__(self, name: str) -> AgentDefinition:
        """The definition of that name.

        Raises:
            UnknownAgent: there is none; the text lists those that there are.
        """
        if name not in self._definitions:
            known = ", ".join(self._definitions)
            raise UnknownAgent(f"There is no agent {name!r}. There are: {known}.")
        return self._definitions[name]

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __iter__(self) -> Any:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)


def load_agent_definitions(own_folder: Path | None = None) -> AgentDefinitions:
    """The definitions that fanout ships, with those of `own_folder` added or put in their place.

    Raises:
        InvalidAgentDefinition: a file is not a definition, or the folder is not there.
    """
    if own_folder is not None and not own_folder.is_dir():
        raise InvalidAgentDefinition(f"FANOUT_AGENTS_DIR is {own_folder}, which is not a folder.")
    definitions: dict[str, AgentDefinition] = {}
    for folder in filter(None, (SHIPPED_AGENTS, own_folder)):
        for path in sorted(folder.glob("*.y*ml")):
            definition = load_agent_definition(path)
            definitions[definition.name] = definition
    return AgentDefinitions(definitions)


def load_agent_definition(path: Path) -> AgentDefinition:
    """Read one definition.

    Raises:
        InvalidAgentDefinition: with the file, the line and what is wrong there.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidAgentDefinition(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidAgentDefinition(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise InvalidAgentDefinition(f"{path}:1: a definition is a mapping with name, description, …")
    lines = _key_lines(node)
    data = _with_instruction(path, data)
    try:
        return AgentDefinition.model_validate(data)
    except ValidationError as error:
        problems = [_in_words(path, lines, detail) for detail in error.errors()]
        raise InvalidAgentDefinition("\n".join(problems)) from None


def _with_instruction(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Put the text of `instruction_file`, a path beside the definition, in its place."""
    if "instruction_file" not in data:
        return data
    source = path.parent / str(data["instruction_file"])
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidAgentDefinition(f"{path}: instruction_file cannot be read: {error}") from error
    rest = {key: value for key, value in data.items() if key != "instruction_file"}
    return {**rest, "instruction": text}


def _key_lines(node: yaml.Node | None) -> dict[str, int]:
    """The line, from 1, of every key at the top level."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}


def _in_words(path: Path, lines: dict[str, int], detail: Any) -> str:
    location = ".".join(str(part) for part in detail["loc"])
    line = lines.get(str(detail["loc"][0]) if detail["loc"] else "", 1)
    if detail["type"] == "extra_forbidden":
        known = ", ".join(AgentDefinition.model_fields)
        return f"{path}:{line}: unknown key {location!r}; known are instruction_file, {known}."
    message = detail["msg"].removeprefix("Value error, ")
    return f"{path}:{line}: {location or 'definition'}: {message}."
