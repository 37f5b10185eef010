"""A jail for a process that looks at what one job wrote. Standard library only.

The process sees what that job started from and its result, read-only, a scratch folder and the
image's programs. It has no network, no other process and no capability but the one to read files
whose modes forbid it; its memory, time and files are limited. Where the steward may not mount, the
jail is weaker: the process becomes the job's user, who can open nothing of other jobs, since their
folders are root's. It may change this job's files then, and files whose modes forbid it are named
as unreadable.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import (
    change_bundle,
    change_diffs,
    change_scan,
    disks,
    environment_archive,
    frames,
)
from .fork_server import ForkFailed, ForkServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    from .change_scan import Marks
    from .change_sides import Root
    from .fork_server import Requester
    from .loop import Context

    Send = Callable[[bytes], None]

CHANGES, ENVIRONMENT = "changes", "environment"
"""What a jailed process writes: a change bundle, or the archive of a prepared environment."""
JAIL_ID = 10002
"""The user and group of a jailed process that may read everything in its jail."""
MAX_MEMORY_BYTES = 1 << 30
"""The memory of a jailed process: git maps the contents that it compares, up to half of it."""
MAX_FILE_BYTES = 1 << 30
"""The largest file that a jailed process writes: the patch of the largest bundle."""
MAX_SECONDS = 300
"""The longest that a collection takes, of the processor and by the clock: the largest bundle takes
a minute."""
MAX_BUNDLE_BYTES = 3 << 29
"""The largest bundle: contents of 512 MiB, their patch, and room."""
_MAX_OPEN_FILES = 2048
"""A scan of two trees holds two folders of each level, and a level has 256 at most."""
_MAX_PROCESSES = 256
"""The most processes of all jails of an engine's host, which share one user: each has two at most.
"""

_NEW_PROCESSES = 0x20000000
"""CLONE_NEWPID."""
_NEW_NAMESPACES = 0x00020000 | 0x08000000
"""Mounts and IPC: CLONE_NEWNS, _NEWIPC. The network is the steward's, which has none: a new one
would make collections wait for the kernel's lock on networks."""
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _REC, _PRIVATE, _SLAVE = 32, 4096, 16384, 1 << 18, 1 << 19
_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "s390x": 217, "ppc64le": 203}
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_CAPABILITY_VERSION_3, _DAC_READ_SEARCH = 0x20080522, 2

_ROOT = Path("/mnt")
"""Where the root of a jail is made, in namespaces of its own: every image has this folder."""

GIT_FAILED, NO_MEMORY, FAILED = 3, 4, 5
"""The exit codes of `work`."""
_ERRNO = 10
"""A code from here on is an errno above it: the kernel refused something."""


class View(NamedTuple):
    """What a jailed process may look at."""

    before: Root
    base: Root
    """What an upper layer lies on: `before`, and the job's prepared environment below it."""
    after: Root
    marks: Marks
    """The marks of the folders of an upper layer."""


class Jail:
    """A process that is locked up, in two steps: most of it is done before it is known for whom.

    Args:
        isolated: whether this process has the right to mount. It is the first one of a namespace
            of processes then: what it starts ends with it.

    Raises:
        OSError: the kernel refused; nothing may be looked at then.
    """

    def __init__(self, *, isolated: bool) -> None:
        # whatever is killed for memory in this container, it is not the steward
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        self._isolated = isolated
        if isolated:
            disks.call("unshare", _NEW_NAMESPACES)
            _make_root()

    def enter(
        self, before: Sequence[Path], after: Path, marked: str, scratch: Path, agent_id: int,
        kept: int, environment: Path | None = None,
    ) -> View:  # fmt: skip
        """Lock this process up, for good.

        Args:
            before: what a job started from: the lower folders of an overlay, the uppermost first.
                One, if this process may not mount.
            after: its result.
            marked: how the names of the marks of an upper layer begin; empty for a whole tree. A
                process with the right to mount may read them, so they are read before that is given
                up.
            scratch: an empty folder, in which the process may write; becomes the one for temporary
                files.
            agent_id: the job's user.
            kept: a descriptor that the process keeps, besides the first three.
            environment: the lowest folder of the overlay, which is no part of what the job started
                from. None, if this process may not mount.

        Raises:
            OSError: the kernel refused; nothing may be looked at then.
        """
        _close_all_but(kept)
        _limit()
        if not self._isolated:
            (tree,) = before
            os.chown(scratch, agent_id, agent_id)
            start = _descriptor(tree)
            view = View(start, start, _descriptor(after), {})
            _become(agent_id, ())
            os.environ["TMPDIR"] = str(scratch)
            return (
                view._replace(marks=change_scan.read_marks(view.after, marked)) if marked else view
            )
        os.chown(scratch, JAIL_ID, JAIL_ID)
        _change_root(before, after, scratch, environment)
        after = Path("/mnt/after")
        marks = change_scan.read_marks(after, marked) if marked else {}
        _become(JAIL_ID, (_DAC_READ_SEARCH,))
        os.environ["TMPDIR"] = "/mnt/scratch"
        shown = Path("/mnt/before")
        return View(shown, Path("/mnt/base") if environment else shown, after, marks)


def _descriptor(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _make_root() -> None:
    """Make the root of a jail: the image, read-only, with nothing of any job in it."""
    safe = _NOSUID | _NODEV
    _mount("none", "/", "", _REC | _SLAVE)  # disks that are mounted and removed meanwhile follow
    _bind(Path("/"), _ROOT, _RDONLY | safe)
    _mount("tmpfs", str(_ROOT / "mnt"), "tmpfs", safe, "size=64k,mode=0755")
    for name in ("before", "base", "after", "scratch"):
        (_ROOT / "mnt" / name).mkdir()
    _mount("tmpfs", str(_ROOT / "dev"), "tmpfs", _NOSUID | _NOEXEC, "size=64k,mode=0755")
    for name in ("null", "urandom"):  # git needs both
        (_ROOT / "dev" / name).touch()
        _bind(Path("/dev", name), _ROOT / "dev" / name, _NOSUID | _NOEXEC)


def _change_root(
    before: Sequence[Path], after: Path, scratch: Path, environment: Path | None
) -> None:
    """Show a job's folders in the jail's root, and make that the only one."""
    safe = _NOSUID | _NODEV | _NOEXEC
    _mount("none", "/", "", _REC | _PRIVATE)
    _show_stacked(before, _ROOT / "mnt" / "before", _RDONLY | safe)
    if environment is not None:
        _show_stacked([*before, environment], _ROOT / "mnt" / "base", _RDONLY | safe)
    _bind(after, _ROOT / "mnt" / "after", _RDONLY | safe)
    _bind(scratch, _ROOT / "mnt" / "scratch", safe)
    os.chdir(_ROOT)
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError("no jail is known for this processor")
    disks.call("syscall", number, b".", b".")
    disks.call("umount2", b".", _DETACH)
    os.chdir("/")


def _show_stacked(trees: Sequence[Path], target: Path, flags: int) -> None:
    """Show trees on top of one another, the uppermost first."""
    if len(trees) == 1:  # an overlay has two at least
        _bind(trees[0], target, flags)
    else:
        options = f"lowerdir={':'.join(map(str, trees))},userxattr"
        _mount("overlay", str(target), "overlay", flags, options)


def _bind(source: Path, target: Path, flags: int) -> None:
    """Show a folder or file at another place; the kernel takes the flags with a second call."""
    _mount(str(source), str(target), "", _BIND)
    _mount("none", str(target), "", _BIND | _REMOUNT | flags)


def _write(out: IO[bytes], view: View, kind: str, *, is_overlay: bool) -> None:
    """Write what was asked for of the changes that can be seen."""
    if is_overlay:
        side = change_scan.MergedSide(view.base, view.after, view.marks)
        candidates = change_scan.scan_overlay(view.base, view.after, side)
        if kind == ENVIRONMENT:
            environment_archive.write_environment(out, view.before, side, candidates)
            return
        if view.base is not view.before:
            candidates = environment_archive.without_removed(candidates, view.before, side)
        change_bundle.write_bundle(out, view.before, side, candidates)
    else:
        candidates = change_scan.scan_trees(view.before, view.after)
        change_bundle.write_bundle(out, view.before, view.after, candidates)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode())
    disks.call("mount", *arguments, ctypes.c_ulong(flags), options.encode())


def _close_all_but(kept: int) -> None:
    """Close all files of this process but the first three and one more."""
    os.closerange(3, kept)
    os.closerange(kept + 1, _MAX_OPEN_FILES)


def _limit() -> None:
    """Limit this process, for good."""
    for limit, most in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_CPU, MAX_SECONDS),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, _MAX_PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def _become(user: int, capabilities: tuple[int, ...]) -> None:
    """Give up all rights of this process but those capabilities."""
    os.umask(0o077)
    os.setgroups([])
    os.setresgid(user, user, user)
    disks.call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(user, user, user)
    _set_capabilities(sum(1 << number for number in capabilities))
    disks.call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _set_capabilities(kept: int) -> None:
    """Keep these capabilities, for this process and not for programs that it starts."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    disks.call("capset", header, data)


def collect(
    before: Sequence[Path], after: Path, *,
    marked: str, agent_id: int,
    server: ForkServer, context: Context,
    environment: Path | None = None, kind: str = CHANGES, send: Send | None = None,
    most_bytes: int = MAX_BUNDLE_BYTES,
) -> None:  # fmt: skip
    """Send the change bundle of a job, written by a jailed process.

    Args:
        before: what the job started from, see `Jail.enter`.
        after: its result.
        environment: its prepared environment, see `Jail.enter`.
        kind: what is written in place of a bundle: `ENVIRONMENT`.
        send: takes the parts in place of the client.
        most_bytes: the most that may be written.
        marked: how the names of the marks begin, if that is an overlay's upper layer; else empty.
        agent_id: the job's user.
        server: starts the process; its processes do `work`.
        context: of the client, which gets the parts; the process is killed when it waits no more.

    Raises:
        InterruptedError: the client does not wait any more.
        CollectionFailed: the process failed, or needed too much memory or time.
        BrokenPipeError: the server is gone.
    """
    with _scratch() as scratch:
        arguments = [
            kind, marked, str(after), str(scratch), str(agent_id), str(environment or ""),
            *map(str, before),
        ]  # fmt: skip
        try:
            with server.start(arguments, MAX_SECONDS) as process:
                context.when_cancelled(process.kill)
                _forward(process.output, send or context.send_chunk, most_bytes)
                _check(process.wait())
        except ForkFailed as error:
            raise CollectionFailed("no process could be started for them") from error


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a folder for a jailed process, in one that it may pass through and not list."""
    home = Path(tempfile.mkdtemp(prefix="fanout-collect-", dir="/var/tmp"))
    try:
        home.chmod(0o711)
        (home / "scratch").mkdir(mode=0o700)
        yield home / "scratch"
    finally:
        _remove(home)


def _remove(home: Path) -> None:
    """Remove such a folder; what a killed process left in it is removed by a program of its own."""
    try:
        (home / "scratch").rmdir()
        home.rmdir()
    except OSError:
        subprocess.run(["rm", "-rf", "--", str(home)], check=False)  # noqa: S603, S607 - ours


def _forward(output: IO[bytes], send: Send, most_bytes: int) -> None:
    left = most_bytes
    while part := output.read(frames.CHUNK_BYTES):
        left -= len(part)
        if left < 0:
            raise CollectionFailed(f"they are larger than {most_bytes} bytes")
        send(part)


def _check(code: int) -> None:
    """Raise CollectionFailed unless a jailed process has succeeded."""
    if code == GIT_FAILED:
        raise CollectionFailed("git failed on them")
    if code == NO_MEMORY:
        raise CollectionFailed(f"it takes more than {MAX_MEMORY_BYTES} bytes of memory")
    if code < 0:
        raise CollectionFailed(f"it was killed: it may take {MAX_SECONDS} s and limited memory")
    if code:
        reason = os.strerror(code - _ERRNO) if code > _ERRNO else f"code {code}"
        raise Unreadable(f"they could not be read ({reason})")


class CollectionFailed(Exception):
    """A jailed process did not write the change bundle; the message has the reason."""


class Unreadable(CollectionFailed):
    """The jail could not be made, or something in it not be read; another try may succeed."""


def collectors() -> ForkServer:
    """Return the server whose processes do `work`. Make it before the first thread.

    Raises:
        OSError: the kernel has no namespaces of processes.
    """
    if not disks.may_mount():
        return ForkServer(partial(work, isolated=False))
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    return ForkServer(partial(work, isolated=True), partial(_fork_apart, own))


def _fork_apart(own: int) -> int:
    """Fork as `os.fork` does; the child is the first process of a new namespace of processes.

    Args:
        own: a descriptor of the namespace of this process. It returns there: its next child would
            be in the same new one otherwise.

    Raises:
        OSError: the kernel refused.
    """
    disks.call("unshare", _NEW_PROCESSES)
    child = None
    try:
        child = os.fork()
    finally:
        if child != 0:
            disks.call("setns", own, _NEW_PROCESSES)
    return child


def work(requester: Requester, *, isolated: bool) -> int:
    """Write a job's change bundle to the standard output, from inside a jail; return an exit code.

    Args:
        requester: gives what to write, how the names of marks begin (see `collect`), the result, a
            scratch folder, the id of the job's user, its environment, and what it started from.
        isolated: whether this process has the right to mount.
    """
    try:
        jail = Jail(isolated=isolated)
        kind, marked, after, scratch, agent_id, environment, *before = requester.receive()
        view = jail.enter(
            [Path(tree) for tree in before], Path(after), marked, Path(scratch), int(agent_id),
            kept=requester.fileno(), environment=Path(environment) if environment else None,
        )  # fmt: skip
        with os.fdopen(1, "wb") as out:
            _write(out, view, kind, is_overlay=marked != "")
    except change_diffs.PrivateGitFailed:
        return GIT_FAILED
    except MemoryError:
        return NO_MEMORY
    except OSError as error:  # its text may quote what the job wrote, its number does not
        return _ERRNO + error.errno if error.errno else FAILED
    except BaseException:  # noqa: BLE001 - as above
        return FAILED
    return 0
