"""How Git's attributes determine the merge of files' texts.

Attributes are data: Git reads them in a private repository. Attributes do not determine which
programs merge files: a driver counts only if the person's own configuration has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..path_text import os_path, path_bytes, path_text
from .process import run_git

ATTRIBUTES_FILE = ".gitattributes"

MAX_ATTRIBUTES_BYTES = 1024**2
"""The largest attribute file: no person writes a longer one."""

DEFAULT_MARKER_SIZE = 7
_MAX_MARKER_SIZE = 200
"""The longest conflict marker: a longer line would not be visible as a marker."""

_ATTRIBUTES = ("merge", "conflict-marker-size", "text", "eol", "working-tree-encoding")

How = Literal["text", "union", "binary", "driver"]


@dataclass(frozen=True)
class MergeRule:
    """How one file is merged."""

    how: How = "text"
    """`union`: lines of both sides; `binary`: never, both sides are kept."""
    driver: str | None = None
    """The command of the person's merge driver."""
    marker_size: int = DEFAULT_MARKER_SIZE
    """Characters of a conflict marker."""
    normalizes_line_ends: bool = False
    """Whether Git stores a text with other line ends than the work tree may have."""
    encoding: str | None = None
    """The encoding in the work tree; None: that of the stored text."""


PLAIN = MergeRule()
"""The rule of files without attributes."""


@dataclass(frozen=True)
class PersonalMergeSettings:
    """What a person has configured outside of any repository, and in a repository as data."""

    folder: Path
    """Where the drivers run: the work tree."""
    prefix: str = ""
    """The path in the work tree of the folder that is merged into, with a slash at the end."""
    above: Mapping[str, bytes] = field(default_factory=dict)
    """The attribute files of the work tree that are above that folder, by path."""
    attributes: bytes = b""
    """The file that applies to all repositories, weaker than those in a work tree."""
    repository_attributes: bytes = b""
    """`info/attributes` of the repository, stronger than all."""
    drivers: Mapping[str, str] = field(default_factory=dict)
    """Name -> command."""


def attribute_folders(paths: Iterable[str]) -> list[str]:
    """Return the folders whose attributes apply to path texts; the uppermost one is empty."""
    found = {""}
    for path in paths:
        names = path.split("/")[:-1]
        found.update("/".join(names[: count + 1]) for count in range(len(names)))
    return sorted(found)


def merge_rules(
    files: Mapping[str, bytes],
    paths: Collection[str],
    personal: PersonalMergeSettings | None = None,
) -> dict[str, MergeRule]:
    """Return the rules of paths with another rule than `PLAIN`; blocks.

    Args:
        files: The contents of the attribute files that apply to them, by path.
        paths: The files to merge.
        personal: None: no person's settings count, as in a sandbox.

    Raises:
        GitFailed: Git is not installed or failed.
    """
    personal = personal or PersonalMergeSettings(Path("/"))
    files = {
        **{personal.prefix + path: content for path, content in files.items()},
        **personal.above,
    }
    if not (files or personal.attributes or personal.repository_attributes):
        return {}
    with tempfile.TemporaryDirectory(prefix="fanout-attributes-") as name:
        git_dir, work_tree = Path(name, "git-dir"), Path(name, "tree")
        for folder in (git_dir / "objects", git_dir / "refs", git_dir / "info", work_tree):
            folder.mkdir(parents=True)
        (git_dir / "HEAD").write_text("ref: refs/heads/none\n")
        (git_dir / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        (git_dir / "attributes").write_bytes(personal.attributes)
        (git_dir / "info/attributes").write_bytes(personal.repository_attributes)
        for path, content in files.items():
            target = work_tree / os_path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        _, output = run_git(
            ["check-attr", "-z", "--stdin", *_ATTRIBUTES],
            folder=work_tree,
            git_dir=git_dir,
            work_tree=work_tree,
            settings=[f"core.attributesFile={git_dir / 'attributes'}"],
            stdin=b"".join(path_bytes(personal.prefix + path) + b"\0" for path in paths),
        )
    fields = [path_text(field) for field in output.split(b"\0")]
    values: dict[str, dict[str, str]] = {}
    for path, attribute, value in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        values.setdefault(path, {})[attribute] = value
    rules = {
        path.removeprefix(personal.prefix): _rule(of_path, personal)
        for path, of_path in values.items()
    }
    return {path: rule for path, rule in rules.items() if rule != PLAIN}


def _rule(values: Mapping[str, str], personal: PersonalMergeSettings) -> MergeRule:
    size = values.get("conflict-marker-size", "")
    is_size = size.isascii() and size.isdigit() and 0 < int(size[:4]) <= _MAX_MARKER_SIZE
    text, eol, encoding = (
        values.get(name, "unspecified") for name in ("text", "eol", "working-tree-encoding")
    )
    rule = MergeRule(
        marker_size=int(size) if is_size else DEFAULT_MARKER_SIZE,
        normalizes_line_ends=text in {"set", "auto"}
        or (text == "unspecified" and eol in {"lf", "crlf"}),
        encoding=None if encoding in {"unspecified", "unset", "set"} else encoding,
    )
    match values.get("merge", "unspecified"):
        case "unset" | "binary":
            return replace(rule, how="binary")
        case "union":
            return replace(rule, how="union")
        case name if name in personal.drivers:
            return replace(rule, how="driver", driver=personal.drivers[name])
    return rule
