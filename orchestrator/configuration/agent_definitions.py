"""Who an agent is: `agents/<name>.yaml`, and a user's own folder beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from orchestrator.approvals import InterruptOn
from orchestrator.configuration.bundled import bundled
from orchestrator.configuration.definition_files import OwnFile, OwnFiles, UnusableOwnFile, is_own
from orchestrator.configuration.mcp_servers import McpServerDefinition
from orchestrator.configuration.summarization import SummarizationDefinition
from orchestrator.jobs.failures import UnknownAgent
from orchestrator.jobs.spec import AgentName, Limits, WireModel

SHIPPED_AGENTS = bundled("config") / "agents"
GENERAL_PURPOSE = "general-purpose"
COORDINATOR = "coordinator"


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
    mcp_servers: tuple[McpServerDefinition, ...] = ()
    """Servers whose tools it has as `<server>__<tool>`."""
    skills: tuple[str, ...] = ()
    """Folders with skills: a path that starts with `/` is the agent's, any other is beside the
    definition."""
    memory: tuple[str, ...] = ()
    """AGENTS.md files, by paths as those of `skills`."""
    interrupt_on: InterruptOn = Field(default_factory=dict)
    """Tools that a person approves first, here and in all agents below."""
    summarization: SummarizationDefinition = SummarizationDefinition()
    """When its long conversation is summed up."""
    subagents: tuple[AgentName, ...] = ()
    """Which agents it may call."""
    delegation: Literal["task", "agent_tools"] = "task"
    """How a coordinator calls them: one `task` tool, or one tool for each."""
    image: str | None = None
    """None takes the installation's image."""
    limits: Limits = Limits()
    max_running: int | None = Field(default=None, ge=1)
    """How many jobs of it run at once, over all workers; None: no limit."""
    network: Literal["none"] | tuple[str, ...] | None = None
    output_schema: dict[str, JsonValue] | None = None
    _own_files: tuple[OwnFile, ...] | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _has_an_instruction(self) -> AgentDefinition:
        if not self.instruction.strip():
            raise ValueError("give instruction or instruction_file")
        return self

    @field_validator("mcp_servers")
    @classmethod
    def _names_each_server_once(
        cls, servers: tuple[McpServerDefinition, ...]
    ) -> tuple[McpServerDefinition, ...]:
        names = [server.name for server in servers]
        if len(set(names)) < len(names):
            raise ValueError("each server needs a name of its own")
        return servers

    def job_limits(self) -> Limits:
        """The definition's limits, its network among them."""
        return Limits(network=self.network).over(self.limits)

    @property
    def own_files(self) -> tuple[OwnFile, ...]:
        """The memory and the skills beside the definition, as they were when it was loaded.

        Raises:
            InvalidAgentDefinition: it names some, and was not loaded from a file.
        """
        if self._own_files is None and any(map(is_own, (*self.memory, *self.skills))):
            raise InvalidAgentDefinition(
                f"{self.name} names files beside it, and is not from a file itself."
            )
        return self._own_files or ()


INNER_MODELS: dict[str, type[WireModel]] = {
    "mcp_servers": McpServerDefinition,
    "limits": Limits,
    "summarization": SummarizationDefinition,
}
"""What stands below a key that is more than a value."""


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

    def callable_by(self, caller: AgentDefinition) -> dict[str, str]:
        """The agents that one may call, with their descriptions.

        Those that it names, and general-purpose.

        Raises:
            UnknownAgent: it names one that there is not.
        """
        return {
            name: self[name].description for name in sorted({GENERAL_PURPOSE, *caller.subagents})
        }

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
        raise InvalidAgentDefinition(
            f"{path}:1: a definition is a mapping with name, description, …"
        )
    data = _with_instruction(path, data)
    try:
        definition = AgentDefinition.model_validate(data)
    except ValidationError as error:
        problems = [_in_words(path, node, detail) for detail in error.errors()]
        raise InvalidAgentDefinition("\n".join(problems)) from None
    definition._own_files = _own_files(path, node, definition)  # noqa: SLF001 - no key of the file
    return definition


def _own_files(
    path: Path, node: yaml.Node | None, definition: AgentDefinition
) -> tuple[OwnFile, ...]:
    """Read what the definition brings along."""
    own = OwnFiles(path.parent)
    sources = [
        (("memory", at), source, own.add_file) for at, source in enumerate(definition.memory)
    ]
    sources += [
        (("skills", at), source, own.add_folder) for at, source in enumerate(definition.skills)
    ]
    for place, source, add in sources:
        if is_own(source):
            try:
                add(source)
            except UnusableOwnFile as error:
                line = _line_of(node, place)
                raise InvalidAgentDefinition(f"{path}:{line}: {place[0]}: {error}.") from None
    return own.files


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


def _line_of(node: yaml.Node | None, place: Sequence[Any]) -> int:
    """The line, from 1, of the innermost key or list item on the way to a place in the file."""
    line = 1
    for step in place:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if str(key.value) == str(step)]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            found = [(item, item) for item in node.value[step : step + 1]]
        else:
            break
        if not found:
            break
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return line


def _in_words(path: Path, node: yaml.Node | None, detail: Any) -> str:
    place = detail["loc"]
    location = ".".join(str(part) for part in place)
    line = _line_of(node, place)
    if detail["type"] == "extra_forbidden":
        inner = INNER_MODELS.get(str(place[0])) if len(place) > 1 else None
        known = inner.model_fields if inner else ("instruction_file", *AgentDefinition.model_fields)
        return f"{path}:{line}: unknown key {location!r}; known are {', '.join(known)}."
    message = detail["msg"].removeprefix("Value error, ")
    return f"{path}:{line}: {location or 'definition'}: {message}."
