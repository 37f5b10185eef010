"""The MCP clients: the files of their servers, the form of an entry, and how it is added.

The forms are those of the vendors' documentation, which each client names. A key is never written:
an entry names the variable of the environment that holds it. Nothing else in a file changes, or the
file does not.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

START_SECONDS = 60
"""The time for the server's start, written for clients that can be configured. The start takes half
a second of processor time, on a busy machine many times that; clients give up after 10 to 30 s by
default."""
CALL_SECONDS = 120
"""The time for one call: calls end within a minute (`wait_job` after 45 s), opencode gives up after
30 s."""
NEW_FILE_MODE = 0o600
"""The mode of a new file, which may get keys of other servers."""
DEFAULT_INDENT = 2


class InstallScope(StrEnum):
    """For whom a client is configured."""

    USER = "user"
    """All projects of this person."""
    PROJECT = "project"
    """All persons of the project in the current folder, whose file belongs into Git."""


@dataclass(frozen=True)
class LocalServer:
    """The server as a process that the client starts."""

    program: str
    arguments: tuple[str, ...]

    def entry(self) -> Entry:
        """Return the form of an entry that most clients use."""
        return {"command": self.program, "args": list(self.arguments)}


@dataclass(frozen=True)
class RemoteServer:
    """The server of a `fanout serve`."""

    url: str
    key_variable: str
    """The variable of the environment that holds the key."""

    def headers(self, reference: str) -> dict[str, str]:
        """Return the header with the key.

        Args:
            reference: How the client refers to a variable, with `NAME` for its name.
        """
        return {"Authorization": f"Bearer {reference.replace('NAME', self.key_variable)}"}


@dataclass(frozen=True)
class McpClient:
    """A program that uses MCP servers."""

    title: str
    documentation: str
    files: Mapping[InstallScope, Callable[[], Path]]
    """The places of its list of servers."""
    section: str
    """The key of the servers in the file."""
    local: Callable[[LocalServer], Entry]
    remote: Callable[[RemoteServer], Entry] | None
    """The form of a remote entry; None: its file has no servers by URL."""
    project_variable: str = ""
    """The variable that it replaces by the project's folder, if it does not start servers there."""
    starts_in_project: bool = True
    """Whether it knows the project's folder."""
    inputs: Callable[[RemoteServer], list[Entry]] = field(default=lambda _: [])
    """The inputs that it asks the person for, and stores itself."""
    waits: Mapping[str, int | bool] = field(default_factory=dict)
    """The fields of an entry that say whether, and how long, the client waits for the start of the
    server and for calls. Empty: it has none."""

    def entry(self, server: LocalServer | RemoteServer) -> Entry:
        """Return the entry of a server.

        Raises:
            ValueError: It is a service, and the client has no servers by URL.
        """
        if isinstance(server, LocalServer):
            return {**self.local(server), **self.waits}
        if self.remote is None:
            raise ValueError(f"{self.title} has no servers by URL.")
        return {**self.remote(server), **self.waits}


def _home(*parts: str) -> Callable[[], Path]:
    return lambda: Path.home().joinpath(*parts)


def _project(*parts: str) -> Callable[[], Path]:
    return lambda: Path.cwd().joinpath(*parts)


def _applications(*parts: str) -> Callable[[], Path]:
    """Return where desktop applications keep their files."""

    def find() -> Path:
        if sys.platform == "darwin":
            return Path.home().joinpath("Library", "Application Support", *parts)
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").joinpath(*parts)

    return find


def _codex_home() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"


def _by_url(reference: str, key: str = "url", **more: str) -> Callable[[RemoteServer], Entry]:
    """Return the form of an entry with a URL and a header.

    Args:
        reference: How the client refers to a variable.
        key: The name of the URL.
        more: Further fields.
    """
    return lambda service: {**more, key: service.url, "headers": service.headers(reference)}


def _typed(command: LocalServer) -> Entry:
    return {"type": "stdio", **command.entry()}


def _vscode_inputs(service: RemoteServer) -> list[Entry]:
    return [
        {
            "type": "promptString",
            "id": service.key_variable,
            "description": "Key of the fanout service",
            "password": True,
        }
    ]


USER, PROJECT = InstallScope.USER, InstallScope.PROJECT

CLIENTS: Mapping[str, McpClient] = {
    "claude-code": McpClient(
        title="Claude Code",
        documentation="https://code.claude.com/docs/en/mcp",
        files={USER: _home(".claude.json"), PROJECT: _project(".mcp.json")},
        section="mcpServers",
        local=_typed,
        remote=_by_url("${NAME}", type="http"),
        waits={"timeout": CALL_SECONDS * 1000},  # the start's is only a variable, MCP_TIMEOUT
    ),
    "claude-desktop": McpClient(
        title="Claude Desktop",
        documentation="https://modelcontextprotocol.io/docs/develop/connect-local-servers",
        files={USER: _applications("Claude", "claude_desktop_config.json")},
        section="mcpServers",
        local=LocalServer.entry,
        remote=None,
        starts_in_project=False,
    ),
    "cursor": McpClient(
        title="Cursor",
        documentation="https://cursor.com/docs/mcp",
        files={USER: _home(".cursor", "mcp.json"), PROJECT: _project(".cursor", "mcp.json")},
        section="mcpServers",
        local=_typed,
        remote=_by_url("${env:NAME}"),
        project_variable="${workspaceFolder}",
    ),
    "vscode": McpClient(
        title="VS Code",
        documentation="https://code.visualstudio.com/docs/copilot/reference/mcp-configuration",
        files={
            USER: _applications("Code", "User", "mcp.json"),
            PROJECT: _project(".vscode", "mcp.json"),
        },
        section="servers",
        local=_typed,
        remote=_by_url("${input:NAME}", type="http"),
        project_variable="${workspaceFolder}",
        inputs=_vscode_inputs,
    ),
    "gemini": McpClient(
        title="Gemini CLI",
        documentation="https://geminicli.com/docs/tools/mcp-server",
        files={
            USER: _home(".gemini", "settings.json"),
            PROJECT: _project(".gemini", "settings.json"),
        },
        section="mcpServers",
        local=LocalServer.entry,
        remote=_by_url("${NAME}", key="httpUrl"),
        waits={"timeout": CALL_SECONDS * 1000},  # of the start, too
    ),
    "codex": McpClient(
        title="Codex",
        documentation="https://developers.openai.com/codex/mcp",
        files={USER: _codex_home, PROJECT: _project(".codex", "config.toml")},
        section="mcp_servers",
        local=LocalServer.entry,
        remote=lambda service: {
            "url": service.url,
            "bearer_token_env_var": service.key_variable,
        },
        # It gives servers that are not required one second, and then begins without their tools.
        waits={
            "required": True,
            "startup_timeout_sec": START_SECONDS,
            "tool_timeout_sec": CALL_SECONDS,
        },
    ),
    "windsurf": McpClient(
        title="Windsurf",
        documentation="https://docs.windsurf.com/windsurf/cascade/mcp",
        files={USER: _home(".codeium", "windsurf", "mcp_config.json")},
        section="mcpServers",
        local=LocalServer.entry,
        remote=_by_url("${env:NAME}", key="serverUrl"),
        starts_in_project=False,
    ),
    "opencode": McpClient(
        title="opencode",
        documentation="https://opencode.ai/docs/mcp-servers",
        files={
            USER: _home(".config", "opencode", "opencode.json"),
            PROJECT: _project("opencode.json"),
        },
        section="mcp",
        local=lambda command: {
            "type": "local",
            "command": [command.program, *command.arguments],
            "enabled": True,
        },
        remote=_by_url("{env:NAME}", type="remote"),
        waits={"timeout": CALL_SECONDS * 1000},  # of the start, too
    ),
}
"""The clients by the name that `fanout mcp install --client` takes."""


class NotMergeable(Exception):
    """The file cannot be changed without losing something; the text says what."""


@dataclass(frozen=True)
class PlacedEntry:
    """An entry, and where it belongs."""

    path: Path
    section: str
    name: str
    entry: Entry
    inputs: Sequence[Entry]

    def merged(self, text: str = "") -> str:
        """Return the text of the file with the entry.

        Args:
            text: The file's text without it.

        Raises:
            NotMergeable: The entry cannot be put there.
        """
        if self.path.suffix == ".toml":
            return put_toml_entry(text, self.section, self.name, self.entry)
        return put_json_entry(text, self.section, self.name, self.entry, self.inputs)

    def write(self) -> None:
        """Put the entry into the file; nothing is written where it is there.

        Raises:
            NotMergeable: The entry cannot be put there.
            OSError: The file cannot be read or written.
        """
        before = read(self.path)
        after = self.merged(before)
        if after != before:
            replace(self.path, before, after)


def put_json_entry(
    text: str, section: str, name: str, entry: dict[str, Any], inputs: Sequence[dict[str, Any]] = ()
) -> str:
    """Return a JSON document with an entry.

    Args:
        text: The document; empty for a new one.
        section: The key of the servers.
        name: The name of the server; an entry with this name is replaced.
        entry: Its entry.
        inputs: Further entries of the list `inputs`, found by `id`.

    Raises:
        NotMergeable: It is not plain JSON, for example because it has comments.
    """
    document = _parsed_json(text)
    servers = document.setdefault(section, {})
    asked = document.setdefault("inputs", []) if inputs else []
    if not isinstance(servers, dict) or not isinstance(asked, list):
        raise NotMergeable(f"its {section!r} or 'inputs' has another form than documented")
    known = {one.get("id") for one in asked if isinstance(one, dict)}
    unknown = [one for one in inputs if one["id"] not in known]
    if servers.get(name) == entry and not unknown:
        return text
    servers[name] = entry
    asked += unknown
    written = json.dumps(document, ensure_ascii=False, indent=_first_indent(text))
    try:
        written.encode()
    except UnicodeEncodeError:  # half of a pair of escapes
        raise NotMergeable("it has texts that are not Unicode") from None
    return written + "\n"


def _parsed_json(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        document = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_float=_exact_float,
            parse_constant=_exact_float,
        )
    except (ValueError, RecursionError) as error:
        raise NotMergeable("it has comments, or is not valid JSON") from error
    if not isinstance(document, dict):
        raise NotMergeable("it is not a JSON object")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise NotMergeable("a key occurs in it twice")
    return dict(pairs)


def _exact_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotMergeable("a number in it is too large")
    return number


def _first_indent(text: str) -> str | int:
    """Return the white space of the first line that has some at its beginning."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else DEFAULT_INDENT


def put_toml_entry(text: str, section: str, name: str, entry: dict[str, Any]) -> str:
    """Return a TOML document with an entry; all other lines stay as they are.

    Args:
        text: The document; empty for a new one.
        section: The key of the servers.
        name: The name of the server; a table with this name is replaced.
        entry: Its entry: texts and lists of texts.

    Raises:
        NotMergeable: It is invalid, or has the entry in another form than a table.
    """
    before = _parsed_toml(text)
    header = f"[{section}.{name}]"
    kept = re.sub(
        rf"^{re.escape(header)}[^\n]*\n(?:(?!\[)[^\n]*(?:\n|$))*", "", text, flags=re.MULTILINE
    )
    lines = [f"{key} = {_toml_value(value)}" for key, value in entry.items()]
    parts = [kept.rstrip("\n"), "\n".join([header, *lines])]
    written = "\n\n".join(part for part in parts if part) + "\n"
    before.setdefault(section, {})[name] = entry
    try:
        is_same = tomllib.loads(written) == before
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise NotMergeable(f"it has {section}.{name} in a form that cannot be replaced")
    return written


def _parsed_toml(text: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotMergeable("it is not valid TOML") from error
    if not isinstance(document.get("mcp_servers", {}), dict):
        raise NotMergeable("its mcp_servers is not a table")
    return document


def _toml_value(value: str | list[str]) -> str:
    """Return a value as TOML: its basic strings have the escapes of JSON."""
    return json.dumps(value)


def read(path: Path) -> str:
    """Return a file's text; empty when it does not exist.

    Raises:
        NotMergeable: It is not text.
        OSError: It cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise NotMergeable("it is not UTF-8") from error


def replace(path: Path, expected: str, text: str) -> None:
    """Replace a file at once, with its permissions; a link stays a link.

    Args:
        path: The file.
        expected: Its content when it was read.
        text: Its new content.

    Raises:
        NotMergeable: Another program has changed it meanwhile.
        OSError: It cannot be written.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, NEW_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if read(target) != expected:
            raise NotMergeable("another program has just changed it: end it and try again")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
