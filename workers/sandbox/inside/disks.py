"""Job disks: an ext4 image for each job, the overlays on them, and what trees take.

Standard library only: see `steward`.

The kernel keeps the size of such a disk, however a job takes space: by files that are unlinked
while they are open, by space that is allocated and not written, by files without content. It runs
in the steward, if that may mount. The image is sparse: it takes what the job wrote, and deleted
files are given back.

With `RENAMING_OVERLAY`, a folder of what the job started from can be renamed: the kernel marks the
upper layer's folder with the path that it had (`trusted.overlay.redirect`). Only a process with the
right to mount can set or read such marks. With `PLAIN_OVERLAY` the marks are `user.overlay.*`, and
the kernel refuses to rename such a folder: the job, which can set them, could name any path.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_BYTES_PER_INODE = 4096
"""One block: a disk full of the smallest files that have content has an inode for each."""
_LEAST_INODES = 1024
"""The inodes of the smallest disk: ext4 and an overlay need some themselves."""
_INODE_BYTES = 256
"""Ext4's own default: room for the marks of an overlay."""
_JOURNAL_BYTES = 4 << 20
"""The smallest that ext4 accepts; a disk outlives a crash of its host."""
_RESERVED_SHARE, _RESERVED_MOST = 50, 16 << 20
"""Ext4 keeps a fiftieth, and 16 MiB at most, for its own delayed allocations."""
_GROUP_BYTES, _BYTES_PER_GROUP = 128 << 20, 32 << 10
"""Ext4's block groups, and the bitmaps and descriptors of each."""
_FIXED_BYTES = 1 << 20
"""What ext4 needs besides, rounded up."""
_LOOP_MAJOR, _LOOP_CONTROL = 7, (10, 237)
_LOOP_CTL_GET_FREE = 0x4C82
_SPARE_NODES = 16
"""Loop devices that other programs may take between the question for a free one and its use."""
_TRIES = 3
_CAP_SYS_ADMIN = 21
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _FROM_EMPTY_PATH = -100, 0x1000, 4
_PR_SET_DUMPABLE = 4
_TREE_FLAGS = 0x80001
_MOUNT_READ_ONLY, _MOUNT_IDMAP, _NEW_USER = 1, 0x100000, 0x10000000
_BYTES_PER_ENTRY = 1024
"""The cost of an inode and a directory entry; without it ten million empty files would count as
nothing."""
_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's."""
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
_OPTIONS = "loop,nosuid,nodev,noatime,discard,noinit_itable,nobarrier"
PLAIN_OVERLAY = "userxattr"
RENAMING_OVERLAY = "redirect_dir=on,metacopy=off"
"""Without `metacopy` a file in the upper layer has its content."""
TRUSTED_MARKS, USER_MARKS = "trusted.overlay.", "user.overlay."
"""How the names of the marks begin."""


class DiskFailed(Exception):
    """A disk could not be made or mounted; the message quotes the tool."""


def may_mount() -> bool:
    """Return whether this process has the right to mount."""
    status = Path("/proc/self/status").read_text()
    effective = int(re.findall(r"^CapEff:\s*(\w+)", status, re.MULTILINE)[0], 16)
    return bool(effective >> _CAP_SYS_ADMIN & 1)


def make(image: Path, size_bytes: int) -> None:
    """Create an image on which a job can store that many bytes.

    Raises:
        DiskFailed: mkfs refused, or is missing.
    """
    inodes = max(_LEAST_INODES, size_bytes // _BYTES_PER_INODE)
    total = size_bytes + inodes * _INODE_BYTES + _JOURNAL_BYTES + _FIXED_BYTES
    total += min(total // _RESERVED_SHARE, _RESERVED_MOST)
    total += (total // _GROUP_BYTES + 1) * _BYTES_PER_GROUP
    with image.open("xb") as file:
        file.truncate(total)
    _run(
        "mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-N", str(inodes), "-I", "256",
        "-J", f"size={_JOURNAL_BYTES >> 20}", "-O", "^resize_inode",
        "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", str(image),
    )  # fmt: skip


def copy(template: Path, image: Path) -> None:
    """Copy an image that `make` made and nobody has used: a tenth of the time of making one."""
    with template.open("rb", buffering=0) as source, image.open("xb", buffering=0) as target:
        size = os.fstat(source.fileno()).st_size
        target.truncate(size)
        for start, end in _extents(source.fileno(), size):
            target.seek(start)
            target.write(os.pread(source.fileno(), end - start, start))


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a sparse file has data."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                return
            raise
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def attach(image: Path, target: Path) -> None:
    """Mount an image on a folder, unless it is mounted there.

    Raises:
        DiskFailed: there is no loop device, or mounting is not allowed.
    """
    if _is_mounted(target):
        return
    target.mkdir(exist_ok=True)
    for left in reversed(range(_TRIES)):  # another program may take the loop device
        try:
            _make_nodes()
            _run("mount", "-n", "-t", "ext4", "-o", _OPTIONS, str(image), str(target))
        except DiskFailed:
            if not left:
                raise
        else:
            return


def detach(target: Path) -> None:
    """Unmount a disk; it disappears at once, and ends when nothing uses it any more."""
    while _is_mounted(target):
        _run("umount", "-n", "-l", str(target))


def disk_user(target: Path, first_id: int) -> int:
    """Return a user id that no other disk of this host has: loop devices are numbered host-wide."""
    return first_id + os.minor(target.stat().st_dev)


class Shown(NamedTuple):
    """A folder that is shown at another place."""

    source: Path
    target: Path
    read_only: bool
    """Whether nobody may write there."""


def show_folders(user: tuple[int, int], folders: Sequence[Shown]) -> None:
    """Show folders at other places with another owner, those that are not shown there.

    Args:
        user: the owner of the files, and the user to whom they shall belong. The group stays.
        folders: the folders.

    Raises:
        DiskFailed: the kernel or the folders' file system cannot (ext4 and xfs can since 5.19).
    """
    missing = [folder for folder in folders if not _is_mounted(folder.target)]
    if not missing:
        return
    try:
        space = _user_namespace(*user)
        try:
            for source, target, read_only in missing:
                target.mkdir(exist_ok=True)
                _show(source, target, space, read_only=read_only)
        finally:
            os.close(space)
    except OSError as error:
        raise DiskFailed(f"files cannot be shown as another user's: {error}") from error


def _show(source: Path, target: Path, space: int, *, read_only: bool) -> None:
    tree = call("syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(source), _TREE_FLAGS)
    try:
        flags = _MOUNT_IDMAP | (_MOUNT_READ_ONLY if read_only else 0)
        change = (ctypes.c_uint64 * 4)(flags, 0, 0, space)
        call("syscall", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, change, ctypes.sizeof(change))
        call("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH)
    finally:
        os.close(tree)


def _user_namespace(owner: int, user: int) -> int:
    """Return a descriptor of a namespace that maps one user to another, and root to itself."""
    theirs, ours = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # nothing but system calls: this process has threads
        os._exit(_enter_user_namespace(theirs[1], ours[0]))
    try:
        if os.read(theirs[0], 1) != b"+":
            raise OSError("no user namespace can be made")
        Path(f"/proc/{child}/uid_map").write_text(f"0 0 1\n{owner} {user} 1\n")
        Path(f"/proc/{child}/gid_map").write_text(f"0 0 1\n{owner} {owner} 1\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.write(ours[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*theirs, *ours):
            os.close(descriptor)


def _enter_user_namespace(tell: int, wait: int) -> int:
    try:
        call("unshare", _NEW_USER)
        call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # the steward is not, and must open its folder
        os.write(tell, b"+")
    except OSError:
        os.write(tell, b"-")
    os.read(wait, 1)
    return 0


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library.

    Raises:
        OSError: it failed.
    """
    result = int(getattr(_LIBRARY, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def check(folder: Path) -> str | None:
    """Make, mount and unmount a small disk in a folder that the engine's host must see.

    Returns:
        Why its files cannot be shown as those of another user; None when they can.

    Raises:
        DiskFailed: the message has the reason why jobs cannot have disks here.
    """
    if not _is_shared(folder):
        raise DiskFailed("its mounts do not reach the engine's host")
    image, target, shown = (
        folder / f"check-{uuid.uuid4().hex}.{name}" for name in ("image", "a", "b")
    )
    try:
        make(image, _LEAST_INODES)
        attach(image, target)
        try:
            show_folders((1, 2), [Shown(target, shown, read_only=True)])
        except DiskFailed as error:
            return str(error)
        return None
    finally:
        for place in (shown, target):
            detach(place)
            with suppress(FileNotFoundError):
                place.rmdir()
        image.unlink(missing_ok=True)


def _is_shared(folder: Path) -> bool:
    """Return whether mounts below a folder propagate, by the mount that has the folder."""
    mount = str(_mount_number(folder))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[0] == mount:
            return any(option.startswith("shared:") for option in fields[6 : fields.index("-")])
    return False


def _is_mounted(target: Path) -> bool:
    """Return whether something is mounted on a folder, also another folder of its file system."""
    mount = _mount_number(target)  # the list of all mounts would grow with the jobs of the engine
    return mount is not None and mount != _mount_number(target.parent)


def _mount_number(folder: Path) -> int | None:
    """Return the number of the mount that a folder is seen on; None when there is no folder."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    return int(re.findall(r"^mnt_id:\s*(\d+)", status, re.MULTILINE)[0])


def _make_nodes() -> None:
    """Make the device files that `mount -o loop` opens: a container has none."""
    control = Path("/dev/loop-control")
    try:
        _make_node(control, stat.S_IFCHR, *_LOOP_CONTROL)
        descriptor = os.open(control, os.O_RDWR | os.O_CLOEXEC)
        try:
            free = fcntl.ioctl(descriptor, _LOOP_CTL_GET_FREE)
        finally:
            os.close(descriptor)
        for number in range(free + _SPARE_NODES):
            _make_node(Path(f"/dev/loop{number}"), stat.S_IFBLK, _LOOP_MAJOR, number)
    except OSError as error:
        raise DiskFailed(f"there is no loop device: {error.strerror}") from error


def _make_node(path: Path, kind: int, major: int, minor: int) -> None:
    with suppress(FileExistsError):
        os.mknod(path, kind | 0o600, os.makedev(major, minor))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
    except OSError as error:
        raise DiskFailed(f"the steward's image has no {command[0]}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise DiskFailed(f"{command[0]} failed: {last[:200]}")


def spread_folders(folder: Path) -> None:
    """Let ext4 put each folder that is made in this one, with its files, into a part of its own.

    Ext4 avoids numbers of files that were deleted in the last half minute, which it passes one by
    one: near a deleted tree of 5,000 files, each new file takes up to a millisecond. Where another
    file system is used, nothing happens.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = bytearray(8)  # the kernel uses four, and calls them a long
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            spread = int.from_bytes(flags, sys.byteorder) | _TOP_FOLDER
            fcntl.ioctl(descriptor, _SET_FLAGS, spread.to_bytes(8, sys.byteorder))
        finally:
            os.close(descriptor)


def allocated(image: Path) -> int | None:
    """Return how many bytes a sparse image takes; None when there is no image."""
    try:
        return image.stat().st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return None


def walked_bytes(folder: Path) -> int:
    """Return the disk usage of a folder, its entries included: without `du`, for a small one.

    Files that vanish meanwhile do not count.
    """
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        total += status.st_blocks * _BLOCK_BYTES + _BYTES_PER_ENTRY
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except OSError:
            continue
    return total


def used_bytes(trees: Sequence[Path]) -> list[int]:
    """Return the disk usage of each tree.

    `du` also handles paths that are too long for Python.
    """
    if not trees:
        return []
    blocks, entries = (_du(option, trees) for option in ("--block-size=1", "--inodes"))
    return [size + count * _BYTES_PER_ENTRY for size, count in zip(blocks, entries, strict=True)]


def _du(option: str, trees: Sequence[Path]) -> list[int]:
    answer = subprocess.run(  # noqa: S603 - our own paths
        ["du", "--summarize", "--null", option, "--", *trees],  # noqa: S607 - the image's
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,  # files vanish while it counts
    )
    found = {}
    for line in answer.stdout.split(b"\0"):
        number, _, path = line.partition(b"\t")
        if path:
            found[os.fsdecode(path)] = int(number)
    return [found.get(str(tree), 0) for tree in trees]


def why_no_renaming(folder: Path) -> str | None:
    """Mount an overlay in a folder and rename one of its folders.

    Returns:
        Why that does not work; None when it does.
    """
    probe = folder / f"renaming-{uuid.uuid4().hex}"
    lower, upper, work, merged = (probe / name for name in ("lower", "upper", "work", "merged"))
    try:
        for each in (lower / "before", upper, work, merged):
            each.mkdir(parents=True)
        options = f"lowerdir={lower},upperdir={upper},workdir={work},{RENAMING_OVERLAY}"
        flags = ctypes.c_ulong(0)
        call("mount", b"overlay", os.fsencode(merged), b"overlay", flags, options.encode())
        try:
            (merged / "before").rename(merged / "after")
        finally:
            detach(merged)
        os.getxattr(upper / "after", f"{TRUSTED_MARKS}redirect")
    except OSError as error:
        return f"the kernel refuses it ({error.strerror})"
    except DiskFailed as error:
        return str(error)
    finally:
        subprocess.run(["rm", "-rf", "--", str(probe)], check=False)  # noqa: S603, S607 - ours
    return None
