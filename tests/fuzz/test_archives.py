"""Archives of snapshots and layers, as a worker and a steward unpack them."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fanout.workers.sandbox.inside import archives
from tests.fuzz.inputs import FUZZ, MARKS, damaged

pytestmark = MARKS

NAMES = st.sampled_from(("a", "b", "a/b", "b/a", "../c", "a/../../c", "ü", "a" * 101)) | st.lists(
    st.sampled_from(("a", "link", "..", ".", "", "\udcff")), min_size=1, max_size=4
).map("/".join)
TARGETS = st.sampled_from(("..", "../outside", "/", "a", "b", ".", "OUTSIDE", "a/b"))
KINDS = (
    *(tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE),
    *(tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"Z"),
)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@st.composite
def made(draw: st.DrawFn) -> bytes:
    """An archive of a few members, of which most are what a snapshot may have."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=draw(st.sampled_from(FORMATS))) as archive:
        usual = st.sampled_from(KINDS[:3])
        for _ in range(draw(st.integers(0, 5))):
            member = tarfile.TarInfo(draw(NAMES))
            member.type = draw(usual | st.sampled_from(KINDS))
            member.linkname = draw(TARGETS) if member.type in KINDS[2:4] else ""
            member.mode = draw(st.sampled_from((0o644, 0o755, 0o4777, 0)))
            member.mtime = draw(st.sampled_from((0, 1, 2**33 - 1, -1)))
            content = draw(st.binary(max_size=20)) if member.type == tarfile.REGTYPE else b""
            member.size = len(content)
            try:
                archive.addfile(member, io.BytesIO(content))
            except ValueError:  # this format cannot say it
                continue
    return out.getvalue()


@st.composite
def links(draw: st.DrawFn) -> bytes:
    """An archive of links, which may lie below each other."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in draw(
            st.lists(st.sampled_from(("a", "b", "a/b", "b/a", "a/b/c")), min_size=2, max_size=4)
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, draw(TARGETS)
            archive.addfile(member)
    return out.getvalue()


@FUZZ
@given(made() | links() | damaged("archives", (b"../", b"/", b"2", b"1")), st.booleans())
def test_nothing_is_written_outside_of_a_folder(data: bytes, is_layer: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, outside = Path(folder, "root"), Path(folder, "outside")
        root.mkdir()
        outside.mkdir()
        Path(outside, "file").write_bytes(b"untouched")
        data = data.replace(b"OUTSIDE", os.fsencode(outside)[:7].ljust(7, b"/"))
        made_paths: list[str] = []

        def own(path: str) -> None:
            above = os.path.realpath(Path(path).parent)
            assert above == str(root) or above.startswith(f"{root}/"), path
            made_paths.append(path)

        removed: list[str] | None = [] if is_layer else None
        is_whole = False
        try:
            archives.unpack(io.BytesIO(data), root, own, removed)
            is_whole = True
        except (archives.UnusableArchive, OSError):
            pass
        assert [path.name for path in sorted(Path(folder).iterdir())] == ["outside", "root"]
        assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [
            ("file", b"untouched")
        ]
        kinds = {path: path.lstat().st_mode for path in root.rglob("*")}
        assert all(path.is_symlink() or path.is_dir() or path.is_file() for path in kinds)
        assert all(not mode & 0o7000 for path, mode in kinds.items() if not path.is_symlink())
        if is_whole:
            assert files_in(root) == files_of(data)


def files_in(root: Path) -> dict[str, bytes]:
    return {
        os.path.relpath(path, root): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def files_of(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive as Python's library reads them."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                found[os.path.normpath(member.name)] = content.read()
    return found
