"""The parts of a repository's own data that a snapshot carries.

A job receives a copy of `.git`, and its agent may follow any instruction in a repository. So the
copy consists of what is on a list of known files: objects, references, the index, and a new
configuration. Hooks, logs, included configuration, helpers and everything that another program
keeps in `.git` are not carried. Committed files are part of the objects, secret or not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from .configuration import (
    RepositoryUnreadable,
    parse_configuration,
)

_OBJECT = r"[0-9a-f]{38}(?:[0-9a-f]{24})?"

_FOLDERS = re.compile(
    r"objects(?:/(?:[0-9a-f]{2}|pack|info|info/commit-graphs))?|refs(?:/.+)?|info|reftable"
    r"|modules(?:/.+)?"
)
"""Below `modules` are the repositories of submodules."""

_FILES = re.compile(
    r"HEAD|(?:ORIG|MERGE|CHERRY_PICK|REVERT)_HEAD|refs/.+(?<!\.lock)|packed-refs|reftable/[\w.-]+"
    r"|config|config\.worktree|index|sharedindex\.[0-9a-f]+|shallow|info/(?:exclude|sparse-checkout)"
    rf"|objects/(?:[0-9a-f]{{2}}/{_OBJECT}|info/packs|info/commit-graph"
    r"|info/commit-graphs/[\w.-]+|pack/(?:multi-pack-index[\w.-]*"
    r"|pack-[0-9a-f]+\.(?:pack|idx|rev|bitmap|mtimes|promisor)))"
)

_LOOSE_OBJECT = re.compile(rf"objects/([0-9a-f]{{2}})/({_OBJECT})")
_REFERENCE = re.compile(r"(?:[A-Z_]*HEAD|refs/.+)")
_REFERENCE_CONTENT = re.compile(rb"(?:ref: \S+|(?:[0-9a-f]{40}(?:[0-9a-f]{24})?\s*)+)\s*")

_RELATIVE_POINTER = re.compile(rb"gitdir: [^/\n][^\n]*\n?")

WORK_TREE_CONFIGURATION = ("core.bare", "core.worktree")
"""The parts of a configuration about one work tree, which do not apply to a copy."""

_CONFIGURATIONS = ("config", "config.worktree")

_EXTENSIONS = {
    "objectformat": re.compile(r"sha1|sha256"),
    "partialclone": re.compile(r"[\w./-]+"),
    "refstorage": re.compile(r"reftable"),
    "worktreeconfig": re.compile(r"true"),
}
"""The extensions that Git must know to read the data. Missing objects of a partial clone are not
damage."""

_SPARSE = (("core", "sparsecheckout"), ("core", "sparsecheckoutcone"), ("index", "sparse"))

_SAFE = re.compile(r"[\w./:+*@~%-]+")
"""A value or a name that means the same without quotes, and continues no other line."""

_URL = re.compile(
    r"(?P<scheme>https?|git|ssh)://(?:(?P<user>[^/\s]*)@)?"
    r"(?P<host>[\w.-]+(?::\d+)?)(?P<path>/[\w./~%+@-]*)?"
)
_SSH_ADDRESS = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!//)[\w./~+-]+")

_WEB_USER = re.compile(rb"(https?://)[^/\s]*@", re.IGNORECASE)
"""Everything before the host: a token may be the user name or the password."""
_PASSWORD = re.compile(rb"([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s]*@", re.IGNORECASE)


def is_git_directory(name: str, names: Collection[str]) -> bool:
    """Return whether a folder contains a repository's data.

    Args:
        name: Its last name.
        names: What is in it.
    """
    return name.lower() == ".git" or {"HEAD", "objects", "refs"} <= set(names)


def is_carried(path: str, *, is_folder: bool) -> bool:
    """Return whether a snapshot has a file or folder of a repository's data, by its path in it."""
    return (_FOLDERS if is_folder else _FILES).fullmatch(path) is not None


def object_id(path: str) -> str | None:
    """Return the object id that a file name in a repository's data means; None if it means none."""
    found = _LOOSE_OBJECT.fullmatch(path)
    return found and found[1] + found[2]


def is_rewritten(path: str, git_dir: str | None) -> bool:
    """Return whether a file's content is checked or changed for the snapshot.

    Args:
        path: Its path in the workspace.
        git_dir: The folder of the repository whose own data it belongs to; None for the work tree.
    """
    if git_dir is None:
        return path.rpartition("/")[2] in {".git", ".gitmodules"}
    inner = path.removeprefix(f"{git_dir}/")
    return inner in _CONFIGURATIONS or _REFERENCE.fullmatch(inner) is not None


def carried_link(path: str, content: bytes) -> bytes | None:
    """Return a file of the work tree for the snapshot, in which it may name a repository.

    A `.git` file with an absolute path is not carried: None. Credentials in URLs are removed from
    `.gitmodules`.
    """
    match path.rpartition("/")[2]:
        case ".git":
            return content if _RELATIVE_POINTER.fullmatch(content) else None
        case ".gitmodules":
            return _PASSWORD.sub(rb"\1@", _WEB_USER.sub(rb"\1", content))
    return content


def carried_content(path: str, content: bytes) -> bytes | None:
    """Return a file's content for the snapshot; None if it is not what its name says.

    Args:
        path: The file's path in the repository's data.
        content: Its content.
    """
    if path in _CONFIGURATIONS:
        return fresh_configuration(content, is_of_work_tree=path != "config")
    if _REFERENCE.fullmatch(path) and not _REFERENCE_CONTENT.fullmatch(content):
        return None
    return content


def fresh_configuration(
    content: bytes, *, without: Collection[str] = (), is_of_work_tree: bool = False
) -> bytes:
    """Return a new configuration with the settings that a repository's data needs, and its remotes.

    A submodule is active, as Git takes one with a URL, although its URL may not be carried.

    Args:
        content: The configuration.
        without: Names of values that are left out.
        is_of_work_tree: It is `config.worktree`, of which only the sparse checkout is kept.
    """
    try:
        values = parse_configuration(content)
    except RepositoryUnreadable:
        values = {}
    values = {name: value for name, value in values.items() if name not in without}
    lines = [*_sparse(values)] if is_of_work_tree else [*_core(values), *_sparse(values)]
    for name, value in sorted(values.items()):
        section, _, rest = name.partition(".")
        subsection, _, key = rest.rpartition(".")
        kept = None if is_of_work_tree else _kept(section, key, value)
        if (section, key, kept) == ("submodule", "url", None) and not is_of_work_tree:
            key, kept = "active", values.get(f"{section}.{subsection}.active", "true")
        if kept and _SAFE.fullmatch(kept) and _SAFE.fullmatch(subsection):
            lines += [f'[{section} "{subsection}"]', f"\t{key} = {kept}"]
    return ("\n".join(lines) + "\n").encode()


def _core(values: Mapping[str, str]) -> Iterator[str]:
    extensions = [
        f"\t{name} = {value}"
        for name, allowed in _EXTENSIONS.items()
        if allowed.fullmatch(value := values.get(f"extensions.{name}", ""))
    ]
    yield "[core]"
    yield f"\trepositoryformatversion = {int(bool(extensions))}"
    for name in ("bare", "filemode", "ignorecase", "precomposeunicode", "symlinks"):
        if (value := values.get(f"core.{name}", "")) in {"true", "false"}:
            yield f"\t{name} = {value}"
    work_tree = values.get("core.worktree", "")
    if re.fullmatch(r"(?:\.\./)+[\w./-]+", work_tree):  # a submodule's, relative to its data
        yield f"\tworktree = {work_tree}"
    if extensions:
        yield from ("[extensions]", *extensions)


def _sparse(values: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings of a sparse checkout."""
    for section, key in _SPARSE:
        if (value := values.get(f"{section}.{key}")) in {"true", "false"}:
            yield from (f"[{section}]", f"\t{key} = {value}")


def _kept(section: str, key: str, value: str) -> str | None:
    """Return the value of a variable for the snapshot; None for one that is not carried."""
    match section, key:
        case (("remote" | "submodule"), "url"):
            return without_user(value)
        case ("remote", "fetch") | ("branch", "remote" | "merge"):
            return value
        case ("remote", "promisor"):
            return value if value == "true" else None
        case ("submodule", "active"):
            return value if value in {"true", "false"} else None
    return None


def without_user(url: str) -> str | None:
    """Return a remote's URL without credentials; None for one that is not known to be harmless."""
    found = _URL.match(url)
    if found is None:
        return url if _SSH_ADDRESS.fullmatch(url) else None
    if url[found.end() : found.end() + 1] not in {"", "?", "#"}:
        return None  # its form is misleading
    user = (found["user"] or "").partition(":")[0] if found["scheme"] == "ssh" else ""
    return f"{found['scheme']}://{user and user + '@'}{found['host']}{found['path'] or ''}"
