"""Agent definitions: `agents/<name>.yaml` of this installation and of a user's folder."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from ..approvals import InterruptOn, parse_policy
from ..jobs.failures import UnknownAgent
from ..jobs.spec import AgentName, Limits, MaxReworks, ShellCommand, WireModel
from ..output_schema import SchemaCheck
from ..regular_files import read_regular_file
from ..spelling import did_you_mean
from ..valid_text import clean_text, not_utf_8
from .bundled import bundled
from .credentials import (
    CredentialDefinition,
    HeaderCredential,
    usable_url,
)
from .definition_files import (
    DefinitionFile,
    DefinitionFiles,
    UnusableDefinitionFile,
    is_relative,
)
from .known_names import BUILT_IN_TOOLS, existing_tool, possible_model
from .setup_definition import SetupDefinition

DEFAULT_MAX_BYTES = 16 * 1024**2
"""The default of `max_bytes`: a hundred source files of usual size, or a few images. A worker holds
it in memory, also as Base64."""
MOST_BYTES = 256 * 1024**2
"""The maximum of `max_bytes`: a worker process runs several jobs, and each may hold four times as
much."""

WITHOUT_MODEL = frozenset(
    {"name", "description", "a2a", "limits", "max_running", "output_schema", "image", "setup"}
    | {"verify", "max_reworks", "network", "credentials", "include"}
)
"""The keys of a definition that apply to a remote agent. It has its own instruction, model and
tools; these keys concern the job, and the sandbox in which its files are verified."""
OF_CODING_AGENTS = WITHOUT_MODEL - {"a2a"} | {"acp", "instruction", "interrupt_on"}
"""The keys of a definition that apply to a coding agent, which has its own model and tools."""
DEFAULT_TIMEOUT_SECONDS = 60.0
"""The default time for a server's start and for each call, as in other MCP clients."""

MAX_NAME_CHARACTERS = 32
"""Half of the maximum of a tool's full name; the other half is for the tool's own name."""

MAX_TIMEOUT_SECONDS = 3600.0
"""The maximum time of a call: a tool that takes longer should offer a call that polls for its
result."""
SHIPPED_AGENTS = bundled("config") / "agents"
GENERAL_PURPOSE = "general-purpose"
COORDINATOR = "coordinator"

MAX_DEFINITION_BYTES = 1024**2
"""The largest YAML file: the longest instruction that a model could follow is a tenth of it."""

DIGEST_CHARACTERS = 12
"""The length of a fingerprint: it is compared with that of another version, not with an attacker's.
"""

ToolName = Annotated[str, AfterValidator(existing_tool)]
ModelName = Annotated[str, AfterValidator(possible_model)]


def _usable_pattern(pattern: str) -> str:
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"{pattern!r} is not a pattern of paths relative to the workspace")
    return pattern


FilePattern = Annotated[str, AfterValidator(_usable_pattern)]

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""The name of a variable of a process's environment."""
_KEY = re.compile(
    r"\b(?:sk-|sk_live_|AIza|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA|hf_)[A-Za-z0-9_-]{16,}"
)
"""The beginnings of the keys of well-known services."""

ToolKind = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
"""The kinds of calls for which a coding agent may ask permission, as ACP names them."""
TOOL_KINDS: tuple[ToolKind, ...] = get_args(ToolKind)


class RemoteAgentDefinition(WireModel):
    """An agent of another service that speaks A2A (1.0, or 0.3 by JSON-RPC and HTTP+JSON)."""

    url: Annotated[str, AfterValidator(usable_url)]
    """The address of its agent card (it ends with `.json`), or the address below which the card is
    at `/.well-known/agent-card.json`. The agent is called at this origin only."""
    credentials: tuple[HeaderCredential, ...] = ()
    """Headers of each request, made of secrets that are only named here."""
    files: Literal["none", "all"] | tuple[FilePattern, ...] = "none"
    """Which files of the job are sent with its task: those that match one of the patterns. A file
    of a type that the card does not name is not sent."""
    max_bytes: int = Field(default=DEFAULT_MAX_BYTES, ge=1024, le=MOST_BYTES)
    """The largest size of the files that are sent, and of each answer."""
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0, le=MAX_TIMEOUT_SECONDS)
    """How long a request may be silent. Its work may take as long as the job's time."""


class CodingAgentDefinition(WireModel):
    """A program in the job's sandbox that speaks the Agent Client Protocol (version 1)."""

    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """The program and its arguments; it speaks ACP on its standard input and output."""
    env: dict[VariableName, str] = Field(default_factory=dict)
    """Variables that are added to its environment, literally; it can read them. So they hold no
    keys: those of `credentials` are put into its requests outside of the sandbox."""
    auth_method: str | None = None
    """The id of the authentication method that it is told to use, if it asks for one; None: one
    that needs only variables of `env`."""

    @field_validator("env")
    @classmethod
    def _holds_no_keys(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if _KEY.search(value) and "dummy" not in value.lower():
                raise ValueError(
                    f"{name} holds a key, which the agent could read: give it a dummy, and the key "
                    "by network and credentials"
                )
        return env


class McpServerDefinition(WireModel):
    """One server: at a `url`, which the worker connects to, or a `command` inside the sandbox."""

    name: str = Field(pattern=r"^[A-Za-z](?:_?[A-Za-z0-9-])*$", max_length=MAX_NAME_CHARACTERS)
    """The beginning of its tools' names, `<name>__<tool>`; so it contains no `__`."""
    url: Annotated[str, AfterValidator(usable_url)] | None = None
    transport: Literal["http", "sse"] | None = None
    """The transport of a `url`; None: `http`, MCP's streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    """`${NAME}` is replaced from the environment of the process that connects. Never shown or
    dumped."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    """Variables that are added to the environment of a `command`, literally; the agent can read
    them."""
    tools: tuple[str, ...] | None = None
    """The tools to use, by the server's names; None: all."""
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0, le=MAX_TIMEOUT_SECONDS)
    """The time for the start, and for each call."""

    @model_validator(mode="after")
    def _is_one_of_two_kinds(self) -> McpServerDefinition:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        if self.url is None and (self.transport or self.headers):
            raise ValueError("transport and headers belong to a url")
        if self.url is not None and self.env:
            raise ValueError("env belongs to a command")
        return self


def _possible(size: tuple[str, float]) -> tuple[str, float]:
    kind, amount = size
    if amount <= 0 or (kind == "fraction" and amount > 1):
        raise ValueError(f"there is no {kind} {amount:g}")
    return size


def _normalised(path: str) -> str:
    folder = path.rstrip("/")
    if not folder.startswith("/") or posixpath.normpath(folder) != folder or folder[:2] == "//":
        raise ValueError(f"{path} is not a normalised absolute path of a folder below /")
    return folder


FolderPath = Annotated[str, AfterValidator(_normalised)]
"""The absolute path of a folder in the agent's files."""

Size = Annotated[tuple[Literal["fraction", "tokens", "messages"], float], AfterValidator(_possible)]
"""A fraction of the model's window, a number of tokens or of messages: `[fraction, 0.85]`."""


class SummarizationDefinition(WireModel):
    """The settings of summarization; unset ones have the deep agent's default."""

    trigger: Size | None = None
    """The size at which the older part of a conversation is replaced by a summary."""
    keep: Size | None = None
    """The newest part, which is not summarized."""
    model: str | None = None
    """The model that writes the summary; None: the agent's own model."""
    window_tokens: int | None = Field(default=None, gt=0)
    """The window of the agent's model, for models of unknown size."""
    history_path_prefix: FolderPath | None = None
    """The folder in which the file tools find the messages that summaries replaced."""

    def settings(self) -> dict[str, Any]:
        """Return the set values as arguments of the deep agent's configuration."""
        return self.model_dump(exclude_none=True)


class LoopLimitsDefinition(WireModel):
    """The limits of one tool; unset ones have the deep agent's default."""

    max_same: int | None = Field(default=None, ge=1)
    """The number of executed calls in a row with the same arguments and result."""
    stop_after: int | None = Field(default=None, ge=2)
    """The number of such calls after which the run ends."""
    max_changing: int | None = Field(default=None, ge=1)
    """The number of executed calls in a row with changing results."""

    @model_validator(mode="after")
    def _warns_before_it_ends(self) -> Self:
        if (self.max_same is None) != (self.stop_after is None):
            raise ValueError("give max_same and stop_after together")
        if self.max_same and self.stop_after and self.stop_after <= self.max_same:
            raise ValueError("stop_after must be above max_same, so that a warning comes first")
        return self


class LoopDefinition(LoopLimitsDefinition):
    """The limits of all tools, and the exceptions."""

    exempt: tuple[str, ...] | None = None
    """Names of tools that are never refused, with `*` for any characters."""
    per_tool: dict[str, LoopLimitsDefinition] | None = None
    """Tools with limits of their own, by name."""

    def settings(self) -> dict[str, Any]:
        """Return the set values as arguments of the deep agent's policy."""
        return self.model_dump(exclude_none=True)


class InvalidAgentDefinition(ValueError):
    """A definition is invalid; the text names the file and the line."""


class AgentDefinition(WireModel):
    """One agent: its prompt, model, tools and limits."""

    name: AgentName
    """The name that jobs and other agents use."""
    description: str = Field(min_length=1)
    """A description for the coordinator, which chooses agents by it."""
    a2a: RemoteAgentDefinition | None = None
    """An agent of another service, which does its jobs; it has its own instruction and model."""
    acp: CodingAgentDefinition | None = None
    """A coding agent in the job's sandbox, which does its jobs; it has its own model and tools.
    `instruction` comes before its first prompt."""
    instruction: str = ""
    """The system prompt."""
    model: ModelName | None = None
    """None, or `inherit`: the model of the run, or else the installation's. The path of a
    scripted one is relative to the definition."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """The most output tokens of one reply of the model; None: the installation's setting."""
    tools: tuple[ToolName, ...] | None = None
    """Names of built-in tools, of `web_search` and `web_fetch`, and of installed ones; None: all
    built-in ones, and no other."""
    mcp_servers: tuple[McpServerDefinition, ...] = ()
    """MCP servers; their tools are named `<server>__<tool>`."""
    skills: tuple[str, ...] = ()
    """Folders with skills: a path that starts with `/` is one of the agent's files, any other is
    relative to the definition's folder."""
    memory: tuple[str, ...] = ()
    """AGENTS.md files, by paths like those of `skills`."""
    interrupt_on: InterruptOn = Field(default_factory=dict)
    """Tools whose calls need a person's approval, for this agent and all agents that it calls."""
    loops: LoopDefinition = LoopDefinition()
    """How often it may make the same call in a row."""
    summarization: SummarizationDefinition = SummarizationDefinition()
    """When a long conversation is summarized."""
    subagents: tuple[AgentName, ...] = ()
    """The agents that it may call."""
    delegation: Literal["task", "agent_tools"] = "task"
    """How a coordinator calls them: with one `task` tool, or one tool for each."""
    scripts: bool = False
    """Whether it may have a script of its own call them: the tool `run_script`, in jobs."""
    image: str | None = None
    """None: the installation's image."""
    setup: SetupDefinition | None = None
    """Commands that prepare an environment for its jobs, once for many of them."""
    limits: Limits = Limits()
    """The limits of its jobs, unless a job sets its own."""
    max_running: int | None = Field(default=None, ge=1)
    """The maximum number of its jobs that run at once, over all workers; None: no limit."""
    network: Literal["none"] | tuple[str, ...] | None = None
    """`none`, or the hosts that its commands may reach."""
    credentials: tuple[CredentialDefinition, ...] = ()
    """The headers that the worker's proxy adds to requests to hosts of `network`; secrets are only
    named."""
    output_schema: dict[str, JsonValue] | None = None
    """A JSON Schema that its answers have to fit."""
    verify: ShellCommand | None = None
    """A command that has to exit with 0 in the sandbox before one of its jobs succeeds."""
    max_reworks: MaxReworks | None = None
    """How often a job may rework its answer when that command fails, and how often a task's changes
    are returned for rework, before it fails; None: twice."""
    verify_merges: ShellCommand | None = None
    """A command that has to exit with 0 in the sandbox before the changes of tasks are merged into
    the files of one of its jobs."""
    include: tuple[str, ...] = ()
    """Files of the workspace that its jobs get even if Git ignores them or they seem to be secret:
    paths relative to the workspace."""
    _files: tuple[DefinitionFile, ...] | None = PrivateAttr(default=None)
    _digest: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _is_here_or_remote(self) -> AgentDefinition:
        if self.a2a is not None and self.acp is not None:
            raise ValueError("give either a2a, for a remote agent, or acp, for a coding agent")
        if not self.has_own_model and not self.instruction.strip():
            raise ValueError(
                "give instruction or instruction_file, a2a for a remote agent, or acp for a coding "
                "agent"
            )
        unused = sorted(self.model_fields_set - WITHOUT_MODEL) if self.a2a else ()
        if unused:
            raise ValueError(f"a remote agent (a2a) has its own {unused[0]}: remove the key")
        unused = sorted(self.model_fields_set - OF_CODING_AGENTS) if self.acp else ()
        if unused:
            raise ValueError(f"a coding agent (acp) has its own {unused[0]}: remove the key")
        return self

    @model_validator(mode="after")
    def _guards_what_coding_agents_ask(self) -> AgentDefinition:
        if self.acp is None:
            return self
        for kind, decisions in parse_policy(self.interrupt_on).items():
            if kind not in TOOL_KINDS:
                raise ValueError(
                    f"interrupt_on: a coding agent asks for no {kind!r}."
                    f"{did_you_mean(kind, TOOL_KINDS)} It asks for {', '.join(TOOL_KINDS)}"
                )
            if self.interrupt_on[kind] is not True and not {"approve", "reject"} >= {*decisions}:
                raise ValueError(
                    f"interrupt_on: {kind} of a coding agent is approved or rejected only"
                )
        return self

    @property
    def has_own_model(self) -> bool:
        """Whether its jobs are done by an agent that is not fanout's, with a model of its own."""
        return self.a2a is not None or self.acp is not None

    @field_validator("model", mode="before")
    @classmethod
    def _inherits_by_name(cls, model: object) -> object:
        return None if model == "inherit" else model

    @field_validator("output_schema")
    @classmethod
    def _has_a_usable_schema(
        cls, schema: dict[str, JsonValue] | None
    ) -> dict[str, JsonValue] | None:
        if schema is not None:
            SchemaCheck(schema)
        return schema

    @field_validator("include")
    @classmethod
    def _includes_relative_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if path.startswith("/") or {"", ".", "..", ".git"}.intersection(path.split("/")):
                raise ValueError(f"{path!r} is not a file's path relative to the workspace")
        return paths

    @field_validator("mcp_servers")
    @classmethod
    def _names_each_server_once(
        cls, servers: tuple[McpServerDefinition, ...]
    ) -> tuple[McpServerDefinition, ...]:
        names = [server.name for server in servers]
        if len(set(names)) < len(names):
            raise ValueError("each server needs its own name")
        return servers

    @model_validator(mode="after")
    def _reaches_the_hosts_of_its_credentials(self) -> AgentDefinition:
        network = self.job_limits().network
        hosts = [credential.address for credential in self.credentials]
        for credential in self.credentials:
            if not isinstance(network, tuple) or not credential.is_within(network):
                raise ValueError(f"credentials: add {credential.host} to network")
        if len(set(hosts)) < len(hosts):
            raise ValueError("credentials: each host has one entry")
        return self

    @property
    def built_in_tools(self) -> tuple[str, ...] | None:
        """Those of `tools` that are built in; None: all."""
        return self.tools and tuple(name for name in self.tools if name in BUILT_IN_TOOLS)

    @property
    def named_tools(self) -> tuple[str, ...]:
        """Those of `tools` that are not built in, each once."""
        return tuple(dict.fromkeys(name for name in self.tools or () if name not in BUILT_IN_TOOLS))

    def job_limits(self) -> Limits:
        """Return the definition's limits, with its network."""
        return Limits(network=self.network).over(self.limits)

    def digest(self) -> str:
        """Return a short fingerprint of the definition and its files, which never change."""
        if self._digest is None:
            self._digest = self._made_digest()
        return self._digest

    def _made_digest(self) -> str:
        hashed = hashlib.sha256(self.model_dump_json().encode())
        for file in self._files or ():
            hashed.update(f"\0{file.path}\0{file.executable}\0".encode() + file.data)
        return hashed.hexdigest()[:DIGEST_CHARACTERS]

    @property
    def files(self) -> tuple[DefinitionFile, ...]:
        """The definition files, as they were when the definition was loaded.

        Raises:
            InvalidAgentDefinition: It names some, but was not loaded from a file.
        """
        if self._files is None and any(map(is_relative, (*self.memory, *self.skills))):
            raise InvalidAgentDefinition(
                f"{self.name} names definition files, but was not loaded from a file."
            )
        return self._files or ()


INNER_MODELS: dict[str, type[WireModel]] = {
    "mcp_servers": McpServerDefinition,
    "credentials": CredentialDefinition,
    "a2a": RemoteAgentDefinition,
    "acp": CodingAgentDefinition,
    "limits": Limits,
    "setup": SetupDefinition,
    "loops": LoopDefinition,
    "summarization": SummarizationDefinition,
}
"""The models of the keys that have keys of their own."""


class AgentDefinitions(dict[str, AgentDefinition]):
    """The agent definitions of an installation by name, sorted.

    Args:
        definitions: Those that are valid.
        invalid: Name -> why it is invalid, with the file and the line.
    """

    def __init__(
        self,
        definitions: Mapping[str, AgentDefinition],
        invalid: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(sorted(definitions.items()))
        self.invalid = dict(invalid)
        """Name -> why the definition is invalid, with the file and the line."""

    def __missing__(self, name: str) -> AgentDefinition:
        """Refuse the name of an agent that does not exist, or whose definition is invalid.

        Raises:
            UnknownAgent: Always; the text lists the existing names, or says what is invalid.
        """
        if name in self.invalid:
            raise UnknownAgent(f"The agent {name!r} cannot be used: {self.invalid[name]}")
        raise UnknownAgent(
            f"There is no agent {name!r}.{did_you_mean(name, self)} There are: {', '.join(self)}."
        )

    def digests(self) -> dict[str, str]:
        """Return the fingerprints of the definitions by name."""
        return {name: definition.digest() for name, definition in self.items()}

    def callable_by(self, caller: AgentDefinition) -> dict[str, str]:
        """Return the descriptions of the agents that an agent may call, by name.

        These are the agents that it names, and general-purpose.

        Raises:
            UnknownAgent: It names an agent that does not exist.
        """
        names = sorted({GENERAL_PURPOSE, *caller.subagents})
        return {
            name: self[name].description
            for name in names
            if name in self or name not in self.invalid
        }


def load_agent_definitions(own_folder: Path | None = None) -> AgentDefinitions:
    """Load the shipped agent definitions and those of a user.

    Args:
        own_folder: A folder whose definitions add to the shipped ones, or replace them.

    Raises:
        InvalidAgentDefinition: A file is not a definition, or the folder does not exist.
    """
    found = read_agent_definitions(own_folder)
    for problem in found.invalid.values():
        raise InvalidAgentDefinition(problem)
    return found


def read_agent_definitions(own_folder: Path | None = None) -> AgentDefinitions:
    """Load as `load_agent_definitions`, but an invalid file makes only its own agent unusable.

    That agent is missing, even if fanout ships one with its name, because the user wants another
    one.

    Raises:
        InvalidAgentDefinition: The folder does not exist.
    """
    if own_folder is not None and not own_folder.is_dir():
        raise InvalidAgentDefinition(f"FANOUT_AGENTS_DIR is {own_folder}, which is not a folder.")
    definitions: dict[str, AgentDefinition] = {}
    invalid: dict[str, str] = {}
    paths: dict[str, Path] = {}
    for folder in filter(None, (SHIPPED_AGENTS, own_folder)):
        for path in sorted(folder.glob("*.y*ml")):
            try:
                definition = load_agent_definition(path)
            except InvalidAgentDefinition as error:
                name = _find_name(path)
                invalid[name] = str(error)
                definitions.pop(name, None)
                continue
            definitions[definition.name] = definition
            paths[definition.name] = path
    known = definitions.keys() | invalid.keys()
    for name, definition in list(definitions.items()):
        if problem := _unknown_subagent(paths[name], definition, known):
            invalid[name] = problem
            del definitions[name]
    return AgentDefinitions(definitions, invalid)


def _find_name(path: Path) -> str:
    """Return the name of the agent that an invalid file is about: its key `name`, else the file's.

    The line is searched in the text, which may not be YAML.
    """
    with suppress(OSError, UnicodeDecodeError):
        found = re.search(r"^name:[ \t]*['\"]?([a-z0-9_-]+)", _read_text(path), re.MULTILINE)
        if found:
            return found[1]
    return path.stem


def _unknown_subagent(
    path: Path, definition: AgentDefinition, known: Collection[str]
) -> str | None:
    for index, name in enumerate(definition.subagents):
        if name not in known:
            line = _find_line(yaml.compose(_read_text(path)), ("subagents", index))
            return (
                f"{path}:{line}: subagents: there is no agent {name!r}."
                f"{did_you_mean(name, known)} There are {', '.join(sorted(known))}."
            )
    return None


class _Loader(yaml.SafeLoader):
    """A loader that replaces invalid text, such as the escaped half of a surrogate pair."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """Return the text of a node."""
        return clean_text(str(super().construct_scalar(node)))


def _read_text(path: Path) -> str:
    return read_regular_file(path, MAX_DEFINITION_BYTES).decode()


def load_agent_definition(path: Path) -> AgentDefinition:
    """Load one definition with its files.

    Raises:
        InvalidAgentDefinition: The file is not a definition; the text names the file and the line.
    """
    try:
        text = _read_text(path)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.load(text, _Loader)  # noqa: S506 - it is a safe one
    except OSError as error:
        raise InvalidAgentDefinition(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidAgentDefinition(f"{path}: {not_utf_8(error)}.") from None
    except yaml.YAMLError as error:
        raise InvalidAgentDefinition(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise InvalidAgentDefinition(
            f"{path}:1: a definition is a mapping with name, description, …"
        )
    data = _with_own_script(path, node, _with_instruction(path, node, data))
    try:
        definition = AgentDefinition.model_validate(data)
    except ValidationError as error:
        problems = [_format_error(path, node, detail) for detail in error.errors()]
        raise InvalidAgentDefinition("\n".join(problems)) from None
    definition._files = _files(path, node, definition)  # noqa: SLF001 - not a key of the file
    return definition


def _files(
    path: Path, node: yaml.Node | None, definition: AgentDefinition
) -> tuple[DefinitionFile, ...]:
    """Read the memory and the skills in the definition's folder."""
    collected = DefinitionFiles(path.parent)
    for key, sources in (("memory", definition.memory), ("skills", definition.skills)):
        for index, source in enumerate(sources):
            if not is_relative(source):
                continue
            try:
                collected.add(source, "file" if key == "memory" else "folder")
            except UnusableDefinitionFile as error:
                line = _find_line(node, (key, index))
                raise InvalidAgentDefinition(f"{path}:{line}: {key}: {error}.") from None
    return collected.files


def _with_instruction(path: Path, node: yaml.Node | None, data: dict[str, Any]) -> dict[str, Any]:
    """Replace `instruction_file`, a file in the definition's folder, by `instruction`."""
    if "instruction_file" not in data:
        return data
    collected = DefinitionFiles(path.parent)
    try:
        collected.add(str(data.pop("instruction_file")), "file")
        text = collected.files[0].data.decode()
    except (UnusableDefinitionFile, UnicodeDecodeError) as error:
        line = _find_line(node, ("instruction_file",))
        reason = not_utf_8(error) if isinstance(error, UnicodeDecodeError) else error
        raise InvalidAgentDefinition(f"{path}:{line}: instruction_file: {reason}.") from None
    return {**data, "instruction": text}


def _with_own_script(path: Path, node: yaml.Node | None, data: dict[str, Any]) -> dict[str, Any]:
    """Make the relative path of a scripted model a file in the definition's folder."""
    kind, _, source = str(data.get("model")).partition(":")
    if kind != "scripted" or not is_relative(source):
        return data
    try:
        DefinitionFiles(path.parent).add(source, "file")
    except UnusableDefinitionFile as error:
        raise InvalidAgentDefinition(
            f"{path}:{_find_line(node, ('model',))}: model: {error}."
        ) from None
    return {**data, "model": f"{kind}:{path.parent.absolute() / source}"}


def _find_line(node: yaml.Node | None, location: Sequence[Any]) -> int:
    """Return the line, from 1, of the innermost key or list item on the path to a value."""
    line = 1
    for step in location:
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


def _format_error(path: Path, node: yaml.Node | None, detail: Any) -> str:
    steps = detail["loc"]
    location = ".".join(str(step) for step in steps)
    line = _find_line(node, steps)
    if detail["type"] == "extra_forbidden":
        inner = INNER_MODELS.get(str(steps[0])) if len(steps) > 1 else None
        known = inner.model_fields if inner else ("instruction_file", *AgentDefinition.model_fields)
        question = did_you_mean(str(steps[-1]), known)
        return f"{path}:{line}: unknown key {location!r}.{question} Known are {', '.join(known)}."
    message = detail["msg"].removeprefix("Value error, ")
    return f"{path}:{line}: {location or 'definition'}: {message}."
