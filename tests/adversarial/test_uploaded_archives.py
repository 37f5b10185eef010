"""Archives that strangers upload: nothing is written outside or fills memory or the disk."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fanout.orchestrator.workspace.exchange import received, unpacking
from fanout.orchestrator.workspace.exchange.received import ArchiveRefused, unpack, write_files
from fanout.orchestrator.workspace.exchange.unpacking import Refused

MANY = 10 * 1024**2


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., Path]:
    """Unpacks an archive, and returns the folder."""

    def unpacked(content: bytes, max_bytes: int = MANY) -> Path:
        archive, folder = tmp_path / "archive", tmp_path / "in" / "files"
        archive.write_bytes(content)
        folder.mkdir(parents=True)
        unpacking.unpack(archive, folder, max_bytes)
        return folder

    return unpacked


def tar(*members: tuple[str, bytes | str | None, int]) -> bytes:
    """A tar of (name, content or target, type)."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type = bytes([kind])
            if isinstance(content, str):
                info.linkname = content
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


FILE, HARD, SYM, CHAR, FOLDER, FIFO = b"0"[0], b"1"[0], b"2"[0], b"3"[0], b"5"[0], b"6"[0]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("../out", b"x", FILE)], "outside"),
        ([("a/.git/objects/info/alternates", b"/srv/other/objects\n", FILE)], "borrows objects"),
        ([("a/../../out", b"x", FILE)], "outside"),
        ([("/etc/out", b"x", FILE)], "outside"),
        ([("link", "/etc", SYM)], "outside the workspace"),
        ([("link", "../..", SYM)], "outside the workspace"),
        ([("a/link", "x/../../../y", SYM)], "outside the workspace"),
        ([("link", ".git/hooks", SYM)], "Git's own data"),
        ([("dir", "other", SYM), ("dir/file", b"x", FILE)], "below a symlink"),
        ([("dir/file", b"x", FILE), ("dir", "other", SYM)], "two members at one path"),
        ([("hard", "/etc/passwd", HARD)], "outside"),
        ([("hard", "../../etc/passwd", HARD)], "outside"),
        ([("link", "target", SYM), ("hard", "link", HARD)], "hard link"),
        ([("device", None, CHAR)], "something other"),
        ([("pipe", None, FIFO)], "something other"),
        ([("a", b"x", FILE), ("a/b", b"x", FILE)], "two members"),
        ([("a", b"x", FILE), ("a", b"y", FILE)], "two members"),
        ([("a" * 300, b"x", FILE)], "too long"),
        ([("d/" * 300 + "x", b"x", FILE)], "too long or too deep"),
    ],
)
def test_a_hostile_tar_is_refused_and_writes_nothing_outside(
    attempt: Callable[..., Path],
    tmp_path: Path,
    members: list[tuple[str, bytes | str | None, int]],
    said: str,
) -> None:
    with pytest.raises(Refused, match=said):
        attempt(tar(*members))
    assert {one.name for one in tmp_path.iterdir()} == {"archive", "in"}
    assert [one.name for one in (tmp_path / "in").iterdir()] == ["files"]


def test_bombs_and_damaged_archives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = gzip.compress(tar(("zeros", bytes(4 * 1024**2), FILE)))
    assert len(bomb) < 10_000

    def refused(content: bytes, said: str, max_bytes: int = 1024**2) -> None:
        folder = tmp_path / said.replace(" ", "-") / "files"
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "archive").write_bytes(content)
        with pytest.raises(Refused, match=said):
            unpacking.unpack(tmp_path / "archive", folder, max_bytes)
        used = sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
        assert used <= max_bytes

    refused(bomb, "more than 1,048,576 bytes")
    refused(b"no archive", "cannot be read")
    refused(b"", "cannot be read")
    refused(gzip.compress(b"no tar" * 1000), "cannot be read")
    refused(gzip.compress(tar(("a", b"x" * 5000, FILE)))[:-40], "cannot be read")
    refused(tar(("a", b"x" * 5000, FILE))[:2000], "ends early|cannot be read")
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 2**31
    refused(header.tobuf() + bytes(1024), "header that is too large")
    monkeypatch.setattr(unpacking, "MAX_MEMBERS", 3)
    refused(tar(*((f"f{number}", b"", FILE) for number in range(5))), "more than 3 members")


def test_a_hostile_zip_is_refused(tmp_path: Path) -> None:
    def refused(make: Callable[[zipfile.ZipFile], None], said: str, spoil: int = 0) -> None:
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
            make(archive)
        content = bytearray(sink.getvalue())
        if spoil:  # a central directory of 3 GiB, it says
            end = content.rindex(b"PK\x05\x06")
            content[end + 12 : end + 16] = struct.pack("<I", spoil)
        (tmp_path / "archive").write_bytes(content)
        folder = tmp_path / "files"
        folder.mkdir(exist_ok=True)
        with pytest.raises(Refused, match=said):
            unpacking.unpack(tmp_path / "archive", folder, 1024**2)
        assert not (tmp_path / "out").exists()

    def special(mode: int, target: bytes) -> Callable[[zipfile.ZipFile], None]:
        info = zipfile.ZipInfo("special")
        info.create_system, info.external_attr = 3, mode << 16
        return lambda archive: archive.writestr(info, target)

    refused(lambda archive: archive.writestr("../out", b"x"), "outside")
    refused(lambda archive: archive.writestr("zeros", bytes(2 * 1024**2)), "more than")
    refused(special(stat.S_IFLNK | 0o777, b"/etc"), "outside the workspace")
    refused(special(stat.S_IFLNK | 0o777, b"x" * 5000), "too many bytes")
    refused(special(stat.S_IFCHR | 0o666, b""), "something other")
    refused(lambda archive: archive.writestr("one", b"x"), "cannot be read|too large", 3 * 2**30)


def deep(count: int, depth: int) -> bytes:
    """A tar of empty files, each below folders of its own that no member names."""
    below = "d/" * (depth - 1) + "f"
    return tar(*((f"{number}/{below}", b"", FILE) for number in range(count)))


def with_header(size: int) -> bytes:
    """A tar with an extended header of digits, which `tarfile` of some releases reads slowly."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, size
    return header.tobuf() + b"1" * size + bytes(-size % 512) + tar(("a", b"x", FILE))


def zip_of(*paths: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for path in paths:
            archive.writestr(path, b"")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(gzip.compress(deep(130, 200)), "25,000 folders", id="implied folders"),
        pytest.param(
            zip_of(*(f"{number}/" + "d/" * 199 for number in range(130))),
            "25,000 folders",
            id="implied folders of a zip",
        ),
        pytest.param(
            tar(*((f"{number}/.git/HEAD", b"", FILE) for number in range(101))),
            "100 Git repositories",
            id="repositories",
        ),
        pytest.param(tar(("a/" * 258, None, FOLDER)), "too deep", id="depth"),
        pytest.param(tar(("/".join(["x" * 250] * 13), b"", FILE)), "too long", id="long path"),
        pytest.param(
            tar(("a", b"x" * 99, FILE), ("b", "a", HARD)), "more than 150", id="hard links"
        ),
        pytest.param(with_header(unpacking.MAX_EXTENDED_BYTES + 1), "header", id="extended header"),
    ],
)
def test_a_bomb_is_counted_and_refused_before_its_first_file_is_written(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "archive").write_bytes(content)
    folder = tmp_path / "files"
    folder.mkdir()
    with pytest.raises(Refused, match=said):
        unpacking.unpack(tmp_path / "archive", folder, 150)
    assert list(folder.iterdir()) == []


def test_an_archive_is_unpacked_by_a_process_that_is_killed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, folder = tmp_path / "archive", tmp_path / "files"
    archive.write_bytes(tar(("a/b", b"bread", FILE)))
    folder.mkdir()
    unpack(archive, folder, max_bytes=100)
    assert (folder / "a" / "b").read_bytes() == b"bread"
    with pytest.raises(ArchiveRefused, match="more than 4 bytes"):
        unpack(archive, tmp_path / "others", max_bytes=4)
    endless = tmp_path / "endless"
    os.mkfifo(endless)  # nobody writes into it
    with pytest.raises(ArchiveRefused, match="no longer wanted"):
        unpack(endless, folder, max_bytes=100, is_wanted=lambda: False)
    monkeypatch.setattr(received, "UNPACK_SECONDS", 0.0)
    with pytest.raises(ArchiveRefused, match="more than 0 seconds"):
        unpack(endless, folder, max_bytes=100)


def test_a_process_that_reads_an_archive_cannot_take_more_memory_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(tar(("a", b"bread", FILE)))
    monkeypatch.setattr(received, "UNPACK_MEMORY_BYTES", 8 * 1024**2)
    with pytest.raises(ArchiveRefused, match="too much time or memory"):
        unpack(archive, tmp_path, max_bytes=100)


def test_files_of_a_message_stay_inside(tmp_path: Path) -> None:
    for path in ("../out", "/out", "a/../../out", "", "nul\0"):
        with pytest.raises(ArchiveRefused):
            write_files({path: b"x"}, tmp_path, max_bytes=10)
    with pytest.raises(ArchiveRefused, match="more than 10 bytes"):
        write_files({"a": b"x" * 11}, tmp_path, max_bytes=10)
    write_files({"a/b": b"x"}, tmp_path, max_bytes=10)
    assert (tmp_path / "a" / "b").read_bytes() == b"x"


def test_an_honest_archive_is_unpacked_whatever_its_kind(attempt: Callable[..., Path]) -> None:
    folder = attempt(
        gzip.compress(
            tar(
                ("./", None, FOLDER),
                ("./a/run.sh", b"#!/bin/sh\n", FILE),
                ("./a/again", "a/run.sh", HARD),
                ("./link", "a/run.sh", SYM),
                ("./empty/", None, FOLDER),
            )
        )
    )
    assert (folder / "link").read_bytes() == (folder / "a" / "again").read_bytes() == b"#!/bin/sh\n"
    assert (folder / "empty").is_dir()
