"""The person's folder as the coordinator's file tools see it.

The coordinator is a model in a process on the host. What it may read is what a job's snapshot has,
and what it may change is what a merge lands without asking a person.
"""

from __future__ import annotations

import os
import threading
import time

from orchestrator.configuration import definition_files
from orchestrator.configuration.agent_definitions import AgentDefinition
from orchestrator.deep_agent import (
    Backend,
    DirectoryBackend,
    ReadOnlyBackend,
    StateBackend,
    composite,
    state_with,
)
from orchestrator.executable_config import is_git_data
from orchestrator.workspace.hold_back import HoldBack, code_of_folder, names_below
from orchestrator.workspace.secret_files import secret_content
from orchestrator.workspace.snapshot import IgnoreRulesUnreadable, scan
from orchestrator.workspace.workspace import Workspace

DEFINITION_FOLDER = f"/{definition_files.FOLDER}"
"""The folder in which a coordinator finds its definition files."""

_FRESH_SECONDS = 1.0
"""How long the list of a folder's files is used: one reply of a model makes many calls."""

_CLOCK_TICK_SECONDS = 0.02
"""How coarse the file times of a local disk are: two ticks of a 100 Hz kernel."""

_GIT_DATA = "Git's own data is not for agents: {path}. Leave it to the person."
_AT_HOME = (
    "{path} stays with the person, because Git ignores it or it may be secret: no agent may read "
    "or change it."
)
_IS_CODE = (
    "{path} is not yours to change, because {reason}. Have a task change it: a person decides "
    "whether that lands."
)
_CONFIDENTIAL = "{path} stays with the person, and no agent may read or change it: {reason}"
_UNKNOWN = "{path} is not shown, because it is not known what Git ignores."


class WorkspaceRule:
    """What the coordinator may read and change in a workspace; an `AccessRule`.

    Args:
        workspace: The person's folder, with the files that a person included by name.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._root = workspace.root
        self._lock = threading.Lock()
        self._seen_at = 0.0
        """When the last scan began, in seconds since the epoch."""
        self._fresh_until = 0.0
        self._visible: frozenset[str] | None = None
        """None when the folder's rules cannot be read."""
        self._code: frozenset[str] = frozenset()

    def why_hidden(self, path: str) -> str | None:
        """Return why the coordinator may not see a path, as a sentence; None if it may."""
        if any(map(is_git_data, path.split("/"))):
            return _GIT_DATA.format(path=path)
        try:
            changed_at = os.lstat(self._root / path).st_ctime
        except (OSError, ValueError):
            return None  # there is nothing to see
        with self._lock:
            self._look()
            if path not in (self._visible or ()) and changed_at > self._seen_at:
                self._look(again=True)
            if self._visible is None:
                return _UNKNOWN.format(path=path)
            return None if path in self._visible else _AT_HOME.format(path=path)

    def why_secret(self, path: str, content: bytes) -> str | None:
        """Return why the coordinator may not see a file's content; None if it may."""
        if path in self._workspace.included:
            return None
        reason = secret_content(content)
        return None if reason is None else _CONFIDENTIAL.format(path=path, reason=reason)

    def why_unchangeable(self, path: str) -> str | None:
        """Return why the coordinator may not write at a path, as a sentence; None if it may."""
        if any(map(is_git_data, path.split("/"))):
            return _GIT_DATA.format(path=path)
        with self._lock:
            self._look()
            reason = HoldBack(names_below(self._root), self._code, [path]).why(path)
        return None if reason is None else _IS_CODE.format(path=path, reason=reason)

    def _look(self, *, again: bool = False) -> None:
        """List the folder, unless that was done just before."""
        if not again and time.monotonic() < self._fresh_until:
            return
        began = time.monotonic()
        self._seen_at = time.time() - _CLOCK_TICK_SECONDS
        try:
            tree = scan(self._root, self._workspace.included)
            self._visible = frozenset(e.path for e in tree.entries if e.git_dir is None)
        except IgnoreRulesUnreadable:
            self._visible = None
        self._code = code_of_folder(self._root)
        seconds = time.monotonic() - began
        self._fresh_until = time.monotonic() + max(_FRESH_SECONDS, 10 * seconds)


def workspace_files(definition: AgentDefinition, workspace: Workspace) -> Backend:
    """Return the workspace under its rule, with the definition files beside it for reading.

    It has no shell: a coordinator runs no commands on the host.

    Args:
        definition: The coordinator's definition.
        workspace: The person's folder.
    """
    rule = WorkspaceRule(workspace)
    files = DirectoryBackend(workspace.root, mount="/workspace", rule=rule)
    provided = definition.files
    if not provided:
        return files
    state = state_with({f"/{file.path}": file.data for file in provided})
    return composite(files, {DEFINITION_FOLDER: ReadOnlyBackend(StateBackend(state))})
