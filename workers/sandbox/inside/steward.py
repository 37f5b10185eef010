"""The steward: stores the files of all jobs of one installation on one Docker engine.

It runs in its own container, one for each worker process, as root over one volume and with no
network. Workers reach it only through its attach stream, so they need neither mounts nor root, and
a remote engine works like a local one. Standard library only. The stewards of one installation
share the volume:

code/<id>/                    the resident's code, mounted read-only into sandboxes
snapshots/<name>/tree         a snapshot or a layer, unpacked, never changed again (`snapshots`);
or a prepared environment, with its lock in environments/ (`environments`)
jobs/<job>/renaming/          where the overlay's folders can be renamed; where they cannot, and in
what releases before that made, the first four of the following are not in here, but next to it
  upper, work                 the job's overlay on what it started from: all that it changed
  output                      the whole outputs of its commands
  image                       where the steward may mount: the disk that has these three
jobs/<job>/disk               the folder on which that disk is mounted
jobs/<job>/lower, layers      the snapshots and that disk, shown as files of the job's own user
jobs/<job>/tree, start_bytes  instead of these, a copy of what it started from, where the engine
cannot mount an overlay
jobs/<job>/snapshot, files    the name of the last snapshot or layer that it started from; the id
of its files
jobs/<job>/environment        the key of its prepared environment, if it has one
jobs/<job>/adopted            under which id they were prepared, if that was before the job came
warm/<id>/                    the same, prepared ahead: it becomes a job's by its renaming
images/<bytes>                a new disk of that size, which is copied for a job
tmp/                          uploads, partly unpacked snapshots, folders being deleted
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import heapq
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from . import archives, disks, jail, resident
from .environments import EnvironmentStore
from .files import begun_upload, drop_upload
from .loop import OperationRefused
from .snapshots import (
    AGENT_ID,
    Snapshots,
    can_stack,
    element_names,
    make_agents_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .fork_server import ForkServer
    from .loop import Context, Reply, SlowOperation


LISTED_JOBS = 1000
"""The most jobs in one list: their ids take half of a reply's header."""


class Sides(NamedTuple):
    """What a job started from, and its result."""

    before: list[Path]
    """The lower folders of an overlay, the uppermost first, without its environment."""
    after: Path
    marked: str
    """How the names of the marks of the result begin; only an overlay's upper layer has marks."""
    environment: Path | None
    """The lowest folder of the overlay: the prepared environment."""


_RENAMING = "renaming"
"""A release that does not know this folder finds no upper layer of the job, and makes a new one:
read without its marks, the job's would seem to lack what was renamed."""

_LEFTOVER_SECONDS = 24 * 3600.0
"""Unfinished folders older than a day are abandoned."""


class Store:
    """The files on the volume. Methods may run in several threads and several stewards at once."""

    def __init__(self, root: Path, cache_bytes: int, reserve_bytes: int) -> None:
        """Make it without I/O.

        Args:
            root: the volume's folder.
            cache_bytes: the limit on unpacked snapshots that no job uses.
            reserve_bytes: the free space that the volume's disk keeps.
        """
        self._root = root
        self._reserve_bytes = reserve_bytes
        self._own_users = False
        self._can_stack = False
        self._can_rename = False
        self._snapshots = Snapshots(
            root / "snapshots", cache_bytes, scratch=self._scratch, discard=self._discard,
            locked=self._locked, in_use=self._snapshots_in_use,
        )  # fmt: skip
        self.environments = EnvironmentStore(
            root / "snapshots", root / "environments", scratch=self._scratch,
            discard=self._discard, locked=self._locked,
            in_use=lambda: self._references("environment"),
        )  # fmt: skip

    def set_up(self, code: Path, code_id: str) -> None:
        """Create the folders, install the resident's code and remove what killed stewards left.

        Args:
            code: the folder of the resident's code.
            code_id: its version.
        """
        for folder in ("code", "snapshots", "environments", "jobs", "warm", "images", "tmp"):
            self._path(folder).mkdir(exist_ok=True)
        for spread in ("jobs", "warm", "tmp"):
            disks.spread_folders(self._path(spread))
        for private in (self._root, *(self._path(each) for each in ("snapshots", "jobs", "warm"))):
            private.chmod(0o700)  # a jail that holds a folder cannot climb out of it
        if not self._path("code", code_id).exists():
            fresh = self._scratch()
            shutil.copytree(code, fresh)
            compileall.compile_dir(fresh, quiet=2)  # or every start of a sandbox would do it
            self._install(fresh, "code", code_id)
        self._snapshots.add_empty()
        # A collection has to mount what is stacked, as an engine does.
        self._can_stack = disks.may_mount() and can_stack(self._path("tmp"))
        before = time.time() - _LEFTOVER_SECONDS
        for leftover in self._path("tmp").iterdir():
            if leftover.lstat().st_mtime < before:
                _delete(leftover)

    def prepare(
        self, job: str, chain: Sequence[str], *,
        overlay: bool, may_stack: bool, disk_bytes: int | None, first_id: int, ahead: bool = False,
        environment: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Create a job's folders on a snapshot; those of an earlier attempt are kept as they are.

        Args:
            job: the job's id, or that of a sandbox that is started ahead.
            chain: the ids of the snapshot and of the layers on it.
            overlay: whether the engine mounts an overlay; else the job gets a copy.
            may_stack: whether it mounts as many lower folders as the chain has.
            disk_bytes: the size of the disk for the overlay's layers; None for plain folders.
            first_id: of the users of the jobs with disks.
            ahead: it is not a job's id; see `adopt`.
            environment: the key of its prepared environment; empty: it has none.

        Returns:
            `files`: the id of these files, which differs from that of any other files made for the
            job; None when not all of the chain is unpacked here. Then `names` has the names of its
            elements, for `unpack`, and `missing` those to unpack. `user`: to whom they belong in
            the sandbox. `lower`: the lower folders of the overlay, uppermost first; `layers`: the
            folder of its others; relative to the volume. `adopted`: under which id the files were
            prepared ahead; a container of that id may have them mounted. Else empty.

        Raises:
            Refused: `DiskReserve`, see `check_reserve`; `DiskFailed`, see `disks`;
                `EnvironmentMissing`, `EnvironmentsUnfit`.
        """
        self.check_reserve()
        if environment and not (overlay and self._can_stack):
            raise OperationRefused("EnvironmentsUnfit", "the engine mounts no overlays for it")
        is_stacked = overlay and may_stack and self._can_stack
        names = element_names(chain, is_flat=not is_stacked)
        with self._locked():
            if missing := self._snapshots.missing(names):
                return {"files": None, "names": names, "missing": missing}
            lower = self._snapshots.trees(names[-1])
            if environment:
                lowest = self.environments.tree(environment)
                if lowest is None:
                    raise OperationRefused("EnvironmentMissing", "it has been removed")
                lower.append(lowest)
            home = self._path("warm" if ahead else "jobs", job)
            if not self._is_made(home, overlay=overlay, has_disk=disk_bytes is not None):
                self._discard(home)  # incomplete, or made for another way
                home.mkdir(mode=0o700)
                (home / "files").write_text(uuid.uuid4().hex)
                if ahead:
                    (home / "adopted").write_text(job)
                if overlay and self._can_rename:
                    (home / _RENAMING).mkdir(mode=0o700)
                if overlay and disk_bytes is not None:
                    disks.copy(self._template(disk_bytes), home / "image.part")
                    (home / "image.part").rename(_layered(home) / "image")
            (home / "snapshot").write_text(names[-1])  # an earlier attempt may have been flat
            (home / "environment").write_text(environment)
            if ahead:
                os.utime(home)  # it is in use from now on: see `warm`
            if overlay:
                disk = self._layers(home)
                for folder in ("work", "output", "upper"):
                    if not (disk / folder).exists():
                        make_agents_folder(disk / folder)
                return self._shown(home, lower, disk, first_id)
            if not (home / "output").exists():
                make_agents_folder(home / "output")
        if not (home / "tree").exists():
            self._copy(lower[0], home)
        return {
            "files": _text(home / "files"),
            "adopted": _text(home / "adopted"),
            "user": AGENT_ID,
        }

    def _shown(
        self, home: Path, lower: Sequence[Path], disk: Path, first_id: int
    ) -> dict[str, Any]:
        """Show the overlay's folders as those of a user who has no other job, if it has a disk."""
        user = AGENT_ID
        if disk == home / "disk" and self._own_users:
            user = disks.disk_user(disk, first_id)
            snapshots = self._snapshots.root
            shown = [
                disks.Shown(snapshots, home / "lower", read_only=True),
                disks.Shown(disk, home / "layers", read_only=False),
            ]
            disks.show_folders((AGENT_ID, user), shown)
            lower = [home / "lower" / tree.relative_to(snapshots) for tree in lower]
            disk = home / "layers"
        return {
            "files": _text(home / "files"),
            "adopted": _text(home / "adopted"),
            "user": user,
            "options": disks.RENAMING_OVERLAY if _can_rename_folders(home) else disks.PLAIN_OVERLAY,
            "lower": [str(tree.relative_to(self._root)) for tree in lower],
            "layers": str(disk.relative_to(self._root)),
        }

    def _template(self, disk_bytes: int) -> Path:
        """Return an image of this size that nobody uses; made if there is none. Holds the lock."""
        template = self._path("images", str(disk_bytes))
        if not template.exists():
            fresh = self._scratch()
            disks.make(fresh, disk_bytes)
            fresh.rename(template)
        return template

    def _layers(self, home: Path) -> Path:
        """Return the folder with a job's upper and work layer; mount its disk if it has one."""
        layered = _layered(home)
        if not (layered / "image").exists():
            return layered
        disks.attach(layered / "image", home / "disk")
        return home / "disk"

    def _is_made(self, home: Path, *, overlay: bool, has_disk: bool) -> bool:
        """Return whether a job's folders are complete, and made in a way that is possible here."""
        if not overlay:
            return (home / "tree").exists()
        if _can_rename_folders(home) and not self._can_rename:
            return False
        layered = _layered(home)
        return has_disk if (layered / "image").exists() else (layered / "upper").exists()

    def free(self) -> int:
        """Return the free space of the volume's disk in bytes, as users other than root see it."""
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def check_reserve(self, more_bytes: int = 0) -> None:
        """Check that the disk keeps its reserve when that many bytes more are written.

        Raises:
            Refused: it does not; the message has the figures.
        """
        free = self.free()
        if free - more_bytes < self._reserve_bytes:
            raise OperationRefused("DiskReserve", f"{free} of {self._reserve_bytes}")

    def _copy(self, source: Path, home: Path) -> None:
        """Copy a snapshot for a job.

        Runs outside the lock: the snapshot is in use from here on and is not evicted.
        """
        copy = home / "tree.part"
        command = ["cp", "-a", "--reflink=auto", "--", str(source), str(copy)]
        subprocess.run(command, check=True)  # noqa: S603 - our paths
        (home / "start_bytes").write_text(str(disks.used_bytes([copy])[0]))
        copy.rename(home / "tree")

    def unpack(self, names: Sequence[str], archive: archives.MemberSource, size: int) -> None:
        """Unpack a snapshot's or a layer's archive; frees space before.

        Args:
            names: those of the elements, as `prepare` returned them, up to this one.
            archive: the archive.
            size: that of the archive.

        Raises:
            UnusableArchive: see `Snapshots.unpack`.
            Refused: see `check_reserve`.
        """
        self.check_reserve(size)
        for name in names:
            self._path("snapshots", name)  # checks it
        self._snapshots.unpack(names, archive)

    def claim_environment(self, key: str) -> str:
        """See `EnvironmentStore.claim`; `impossible`: they cannot be mounted here."""
        return self.environments.claim(key) if self._can_stack else "impossible"

    def _snapshots_in_use(self) -> set[str]:
        return self._references("snapshot")

    def _references(self, name: str) -> set[str]:
        """Return what the files of this name say, of all jobs and of what was prepared ahead."""
        return {
            _text(reference)
            for folder in ("jobs", "warm")
            for reference in self._path(folder).glob(f"*/{name}")
        }

    def adopt(self, warm: str, job: str) -> str:
        """Make files that were prepared ahead those of a job, in one step.

        Mounts of them stay valid, and `adopted` names them from now on.

        Args:
            warm: the id under which they were prepared.
            job: the job's id.

        Returns:
            The id of the files; empty when the job has files already, or these are gone.
        """
        home = self._path("jobs", job)
        with self._locked():
            if home.exists():
                return ""
            try:
                self._path("warm", warm).rename(home)
            except FileNotFoundError:
                return ""
        return _text(home / "files")

    def adopted(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return under which ids the files of jobs were prepared, of those that were ahead."""
        names = {job: _text(self._path("jobs", job) / "adopted") for job in jobs}
        return {job: warm for job, warm in names.items() if warm}

    def keep_ahead(self, warm: str) -> bool:
        """Mark files that were prepared ahead as in use; see `warm`."""
        os.utime(self._path("warm", warm))
        return True

    def warm(self, idle_seconds: float) -> list[str]:
        """Return the ids of files that were prepared ahead at least so long ago."""
        before = time.time() - idle_seconds
        with self._locked():  # none is renamed meanwhile
            homes = list(self._path("warm").iterdir())
            return [home.name for home in homes if home.stat().st_mtime < before][:LISTED_JOBS]

    def both_sides(self, job: str, *, ahead: bool = False) -> Sides:
        """Return what a job started from, and its result.

        Args:
            job: the job's id, or that of a sandbox that was started ahead.
            ahead: which of the two.
        """
        home = self._path("warm" if ahead else "jobs", job)
        before = self._snapshots.trees((home / "snapshot").read_text())
        if (home / "tree").exists():
            return Sides(before, home / "tree", "", None)
        marked = disks.TRUSTED_MARKS if _can_rename_folders(home) else disks.USER_MARKS
        environment = _text(home / "environment")
        lowest = self.environments.tree(environment) if environment else None
        return Sides(before, self._layers(home) / "upper", marked, lowest)

    def seal(
        self, key: str, build: str, record: dict[str, Any], most_bytes: int,
        collectors: ForkServer, context: Context,
    ) -> dict[str, Any]:  # fmt: skip
        """Make an environment of what a set-up made in a sandbox that was started ahead.

        Args:
            key: of a claim that is held.
            build: the id of the sandbox's files.
            record: what is kept of it.
            most_bytes: its largest archive.
            collectors: start the process that looks at the files.
            context: of the client.

        Returns:
            `bytes` that it takes and the `digest` of its archive.

        Raises:
            Refused: `NotClaimed`, `DiskReserve`; `Unsealed`: it has too many files or bytes.
            CollectionFailed: see `jail.collect`.
        """
        self.environments.check_claim(key)
        home = self._path("warm", build)
        os.utime(home)
        sides = self.both_sides(build, ahead=True)
        archive, digest = self._scratch(), hashlib.sha256()
        try:
            with archive.open("wb") as file:

                def keep(part: bytes) -> None:
                    self.check_reserve(len(part))
                    file.write(part)
                    digest.update(part)

                jail.collect(
                    sides.before, sides.after, marked=sides.marked, agent_id=AGENT_ID,
                    server=collectors, context=context, kind=jail.ENVIRONMENT, send=keep,
                    most_bytes=most_bytes,
                )  # fmt: skip
            self.environments.check_claim(key)
            record = {**record, "digest": digest.hexdigest()}
            size = self.environments.install(key, archive, record)
        except archives.UnusableArchive as error:
            raise OperationRefused("Unsealed", str(error)) from error
        finally:
            archive.unlink()
        return {"bytes": size, "digest": digest.hexdigest()}

    def check_disks(self) -> str | None:
        """Check that jobs can have disks of their own here.

        Returns:
            Why they cannot have users of their own; None when they can.

        Raises:
            DiskFailed: see `disks.check`.
        """
        shared = disks.check(self._path("tmp"))
        self._own_users = shared is None
        return shared

    def check_renaming(self) -> str | None:
        """Check whether jobs can rename the folders that they start from.

        Returns:
            Why they cannot; None when they can.
        """
        reason = disks.why_no_renaming(self._path("tmp"))
        self._can_rename = reason is None
        return reason

    def measure(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return how many bytes of the volume's disk each of these has taken.

        Args:
            jobs: ids of jobs, or of sandboxes that were started ahead.
        """
        places = [self._path(folder, job) for job in jobs for folder in ("jobs", "warm")]
        homes = [home for home in places if home.exists()]
        used = {home.name: disks.allocated(_layered(home) / "image") for home in homes}
        plain = [home for home in homes if used[home.name] is None]
        uppers = [_layered(home) / "upper" for home in plain]
        trees = [
            upper if upper.exists() else home / "tree"
            for home, upper in zip(plain, uppers, strict=True)
        ]
        outputs = disks.used_bytes([_layered(home) / "output" for home in plain])
        for home, *sizes in zip(plain, disks.used_bytes(trees), outputs, strict=True):
            used[home.name] = max(0, sum(sizes) - int(_text(home / "start_bytes") or 0))
        return {job: size for job, size in used.items() if size is not None}

    def jobs(self, after: str) -> list[str]:
        """Return the first jobs that have files here, in order, whose names come after one."""
        names = (home.name for home in self._path("jobs").iterdir())
        return heapq.nsmallest(LISTED_JOBS, (name for name in names if name > after))

    def delete(self, job: str, *, ahead: bool = False) -> bool:
        """Delete the files of a job, or some that were prepared; return whether there were any."""
        return self._discard(self._path("warm" if ahead else "jobs", job))

    def _discard(self, folder: Path) -> bool:
        """Rename a folder so that it disappears at once, then delete it."""
        away = self._scratch()
        for name in ("lower", "layers", "disk"):
            disks.detach(folder / name)
        try:
            folder.rename(away)
        except FileNotFoundError:
            return False
        _delete(away)
        return True

    def _install(self, fresh: Path, *parts: str) -> None:
        try:
            fresh.rename(self._path(*parts))
        except OSError:  # another steward was faster
            _delete(fresh)

    def _path(self, *parts: str) -> Path:
        for part in parts:
            if part in {"", ".", ".."} or "/" in part:
                raise ValueError("a name of the store is one path component")
        return self._root.joinpath(*parts)

    def _scratch(self) -> Path:
        return self._path("tmp", uuid.uuid4().hex)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other stewards, and other threads of this one."""
        descriptor = os.open(self._path("lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _text(file: Path) -> str:
    """Return a file's content; empty when there is none."""
    return file.read_text() if file.exists() else ""


def _can_rename_folders(home: Path) -> bool:
    """Return whether the folders of a job's overlay can be renamed."""
    return (home / _RENAMING).exists()


def _layered(home: Path) -> Path:
    """Return the folder that has a job's upper layer, or the disk with it."""
    return home / _RENAMING if _can_rename_folders(home) else home


def _delete(path: Path) -> None:
    """Delete a tree of any depth, if there is one."""
    command = ["rm", "-rf", "--", str(path)]
    subprocess.run(command, check=True)  # noqa: S603 - our own paths


def _replying(key: str, method: Callable[..., object]) -> SlowOperation:
    """Return an operation that replies with what a method of the store returns."""

    def reply(_context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        try:
            return {key: method(**arguments)}, b""
        except disks.DiskFailed as error:
            raise OperationRefused("DiskFailed", str(error)) from error

    return reply


def _operations(store: Store, collectors: ForkServer) -> dict[str, SlowOperation]:
    """Return the operations that `workers.sandbox.docker.steward_client` calls."""

    def unpack(_context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        archive = archives.Arriving(begun_upload(arguments["upload"]), arguments["bytes"])
        try:
            store.unpack(arguments["names"], archive, arguments["bytes"])
            archive.wait()
        except archives.UnusableArchive as error:
            raise OperationRefused("UnusableArchive", str(error)) from error
        finally:
            archive.close()
            drop_upload(arguments["upload"])
        return {}, b""

    def bundle(context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        sides = store.both_sides(arguments["job"])
        return collected(
            lambda: jail.collect(
                sides.before,
                sides.after,
                marked=sides.marked,
                agent_id=AGENT_ID,
                server=collectors,
                context=context,
                environment=sides.environment,
            )
        )

    def seal(context: Context, arguments: dict[str, Any], _payload: bytes) -> Reply:
        return collected(lambda: store.seal(**arguments, collectors=collectors, context=context))

    def collected(collect: Callable[[], dict[str, Any] | None]) -> Reply:
        try:
            return collect() or {}, b""
        except jail.CollectionFailed as error:
            raise OperationRefused(type(error).__name__, str(error)) from error
        except BrokenPipeError:
            os._exit(1)  # without the fork server no collection succeeds; the worker starts another

    return {
        "prepare": _replying("prepared", store.prepare),
        "check_disks": _replying("shared_user", store.check_disks),
        "check_renaming": _replying("no_renaming", store.check_renaming),
        "free": _replying("bytes", store.free),
        "unpack": unpack,
        "bundle": bundle,
        "measure": _replying("bytes", store.measure),
        "jobs": _replying("jobs", store.jobs),
        "delete": _replying("deleted", store.delete),
        "adopt": _replying("files", store.adopt),
        "adopted": _replying("adopted", store.adopted),
        "warm": _replying("warm", store.warm),
        "keep_ahead": _replying("kept", store.keep_ahead),
        "claim_environment": _replying("claim", store.claim_environment),
        "release_environment": _replying("released", store.environments.release),
        "seal": seal,
        "has_environment": _replying("found", store.environments.has),
        "environments": _replying("environments", store.environments.page),
        "remove_environments": _replying("removed", store.environments.remove),
    }


def main() -> NoReturn:
    """Serve one worker.

    The program's arguments: the volume's folder, the size of the cache, the disk's reserve, the
    resident's code and its id.
    """
    collectors = jail.collectors()
    root, cache_bytes, reserve_bytes, code, code_id = sys.argv[1:]
    store = Store(Path(root), int(cache_bytes), int(reserve_bytes))
    store.set_up(Path(code), code_id)
    resident.SLOW_OPERATIONS.update(_operations(store, collectors))
    resident.main(reap_orphans=False)
