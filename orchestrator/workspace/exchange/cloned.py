"""A commit of a Git repository, fetched into an empty folder.

The repository and its host are not trusted: only HTTPS to an address that was checked, without
redirects, submodules, hooks, filters or variables of the environment; and the size of a commit is
measured before it is checked out.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ...git.process import GitFailed, run_git
from ...jobs.failures import JobFailure
from .unpacking import ArchiveMember, Inventory, Refused

MAX_DEPTH = 1_000
"""The most commits that are fetched: a job does not need a longer history."""
HTTPS_PORT = 443

_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./+@-]{0,249}")
_ENTRY = re.compile(rb"(\d{6}) \w+ [0-9a-f]+ +(\d+|-)\t([^\0]+)\0")
"""The pattern of an entry of `ls-tree -l -z`: mode, size and path."""
_SUBMODULE = b"160000"
MAX_LISTED_BYTES = 64 * 1024**2
"""The largest list of a commit's files that is read; the limit is that of all paths of an archive.
Nested trees can name millions of files in a few kilobytes."""
MAX_MEMORY_BYTES = 2 * 1024**3
"""The memory of Git while it receives untrusted data: half of the memory for a person's own
repository."""
_PACK_SHARE = 2
"""The factor by which the fetched history may be larger than the files of a commit."""
_OWN_BYTES = 64 * 1024**2
"""The bytes of a file of Git itself, such as an index, in any repository."""


class CloneRefused(JobFailure):
    """The repository cannot be cloned; the text says why."""


@dataclass(frozen=True)
class GitSource:
    """A commit of a repository."""

    url: str
    """`https://host/path`, without a user, a query or a fragment."""
    ref: str = "HEAD"
    """A branch, a tag or a commit."""
    depth: int = 1
    """How many commits are fetched."""


@dataclass(frozen=True)
class GitRules:
    """Which repositories are cloned."""

    addresses: Callable[[str, int], list[str]] | None = None
    """Takes a host and a port, and returns the addresses that may be connected; raises ValueError
    with a sentence when there are none. None: nothing is cloned."""
    seconds: float = 120.0
    """How long a clone may take."""
    ca_file: Path | None = None
    """Certificates that are trusted instead of the system's."""


def check_source(source: GitSource) -> SplitResult:
    """Return a repository's address after the checks that need no connection.

    Raises:
        CloneRefused: It is not allowed.
    """
    try:
        url = urlsplit(source.url)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme != "https" or not url.hostname:
        raise CloneRefused("A repository is cloned from https://HOST/PATH only.")
    if url.username is not None or url.password is not None or url.query or url.fragment:
        raise CloneRefused(
            "The address of a repository holds no user, password or query: they would get into "
            "logs. Upload the files of a private repository (POST /v1/snapshots)."
        )
    if not re.fullmatch(r"[\x21-\x7e]+", source.url) or port == 0:
        raise CloneRefused("The address of the repository is invalid: write it as a URL.")
    if not _REFERENCE.fullmatch(source.ref) or ".." in source.ref or "@{" in source.ref:
        raise CloneRefused("ref is a branch, a tag or the 40 digits of a commit.")
    return url


def clone(
    source: GitSource,
    folder: Path,
    rules: GitRules,
    *,
    max_bytes: int,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Fetch a commit into an empty private folder; blocks.

    Args:
        source: The commit.
        folder: The folder, which becomes a repository.
        rules: What is allowed.
        max_bytes: The maximum sum of the files, and twice as much of the history.
        is_wanted: Asked twice a second; when it returns False, Git is ended.

    Raises:
        CloneRefused: The repository is not allowed, cannot be reached, or is too large.
    """
    url = check_source(source)
    git = _Git(folder, time.monotonic() + rules.seconds, max_bytes, is_wanted)
    settings = _connection(url, rules)
    try:
        git.run(["init", "--quiet", "--template=", "--initial-branch=main", str(folder)])
        git.run(
            [
                *(
                    "fetch",
                    "--quiet",
                    "--no-tags",
                    "--no-recurse-submodules",
                    "--no-write-commit-graph",
                ),
                *(f"--depth={source.depth}", "--no-auto-maintenance", "--end-of-options"),
                *(source.url, source.ref),
            ],
            settings,
        )
        git.require_small()
        git.run(["update-ref", "--no-deref", "HEAD", "FETCH_HEAD^{commit}"])
        git.run(["reset", "--quiet", "--hard", "--no-recurse-submodules"])
        (folder / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
    except GitFailed as failure:
        raise CloneRefused(f"The repository cannot be cloned: {failure}.") from failure


def _connection(url: SplitResult, rules: GitRules) -> list[str]:
    """Return Git's settings for connections to a checked address only."""
    host, port = str(url.hostname), url.port or HTTPS_PORT
    if rules.addresses is None:
        raise CloneRefused("This service clones no repositories: upload the files.")
    try:
        addresses = rules.addresses(host, port)
    except ValueError as error:
        raise CloneRefused(str(error)) from error
    shown = ",".join(f"[{one}]" if ":" in one else one for one in addresses)
    is_name = host not in addresses
    return [
        "protocol.https.allow=always",
        *([f"http.curloptResolve={host}:{port}:{shown}"] if is_name else []),
        "http.followRedirects=false",
        "pack.threads=1",  # each would have its own memory
        "fetch.unpackLimit=1",  # one file, which grows while it is watched
        "http.proxy=",
        "http.lowSpeedLimit=1000",
        "http.lowSpeedTime=20",
        *([f"http.sslCAInfo={rules.ca_file}"] if rules.ca_file else []),
    ]


class _Git:
    """Git in one new repository, with one limit of time and of bytes for all commands."""

    def __init__(
        self, folder: Path, deadline: float, max_bytes: int, is_wanted: Callable[[], bool]
    ) -> None:
        self._folder = folder
        self._deadline = deadline
        self._max_bytes = max_bytes
        self._is_wanted = is_wanted

    def run(self, arguments: list[str], settings: list[str] | None = None) -> bytes:
        """Run a command and return its output."""
        _, output = run_git(
            arguments,
            folder=self._folder,
            git_dir=self._folder / ".git",
            work_tree=self._folder,
            settings=settings or (),
            protocols="https" if settings else "",
            seconds=max(self._deadline - time.monotonic(), 0.0),
            max_output_bytes=MAX_LISTED_BYTES,
            max_memory_bytes=MAX_MEMORY_BYTES,
            max_file_bytes=_PACK_SHARE * self._max_bytes + _OWN_BYTES,
            watch=self._watch,
        )
        return output

    def require_small(self) -> None:
        """Refuse a commit whose files are too many or too large, before they are written.

        Raises:
            GitFailed: They are.
        """
        listed = self.run(["ls-tree", "-r", "-l", "-z", "FETCH_HEAD^{commit}"])
        inventory = Inventory(self._max_bytes, what="commit")
        try:
            for mode, size, path in _ENTRY.findall(listed):
                kind = "folder" if mode == _SUBMODULE else "file"
                count = 0 if size == b"-" else int(size)
                inventory.add(ArchiveMember(os.fsdecode(path), kind, size=count))
        except Refused as refusal:
            raise GitFailed(str(refusal)) from None

    def _watch(self) -> None:
        if not self._is_wanted():
            raise GitFailed("is no longer wanted")
        packs, used = self._folder / ".git" / "objects" / "pack", 0
        with suppress(FileNotFoundError):  # not made yet, or renamed meanwhile
            used = sum(one.stat().st_size for one in packs.iterdir())
        if used > _PACK_SHARE * self._max_bytes:
            raise GitFailed("received too many bytes")
