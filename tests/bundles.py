"""Building change bundles for tests, honest and hostile ones."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from fanout.orchestrator.jobs.changes import (
    ChangedFile,
    ChangeKind,
    Changes,
    FileVersion,
    SkippedFile,
)

Bundle = io.BytesIO


class BundleBuilder:
    """Collects changes; `build` gives the archive."""

    def __init__(self) -> None:
        self._files: list[ChangedFile] = []
        self._objects: dict[str, bytes] = {}
        self._skipped: list[SkippedFile] = []

    def file(self, content: bytes, mode: int = 0o644) -> FileVersion:
        return self._version("file", content, mode)

    def link(self, target: str) -> FileVersion:
        return self._version("symlink", target.encode(), 0o777)

    def directory(self, mode: int = 0o755) -> FileVersion:
        return FileVersion(kind="directory", mode=mode)

    def add(self, path: str, after: FileVersion) -> BundleBuilder:
        return self.change(path, None, after)

    def edit(self, path: str, before: bytes, after: bytes) -> BundleBuilder:
        return self.change(path, self.file(before), self.file(after))

    def delete(self, path: str, before: FileVersion) -> BundleBuilder:
        return self.change(path, before, None)

    def rename(self, old: str, new: str, before: FileVersion, after: FileVersion) -> BundleBuilder:
        return self.change(new, before, after, from_path=old)

    def skip(self, path: str) -> BundleBuilder:
        self._skipped.append(SkippedFile(path=path, reason="over the size limit"))
        return self

    def change(
        self,
        path: str,
        before: FileVersion | None,
        after: FileVersion | None,
        from_path: str | None = None,
    ) -> BundleBuilder:
        kind = (
            ChangeKind.RENAMED
            if from_path
            else ChangeKind.ADDED
            if before is None
            else ChangeKind.DELETED
            if after is None
            else ChangeKind.MODE
            if before.sha256 == after.sha256
            else ChangeKind.MODIFIED
        )
        self._files.append(
            ChangedFile(path=path, change=kind, from_path=from_path, before=before, after=after),
        )
        return self

    def tamper(self, real: bytes, fake: bytes) -> BundleBuilder:
        """Put other bytes where the bundle says `real` is."""
        self._objects[hashlib.sha256(real).hexdigest()] = fake
        return self

    def forget(self, content: bytes) -> BundleBuilder:
        del self._objects[hashlib.sha256(content).hexdigest()]
        return self

    def build(self) -> Bundle:
        files = tuple(sorted(self._files, key=lambda file: file.path))
        changes = Changes(files=files, skipped=tuple(self._skipped))
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            _add(archive, "changes.json", changes.model_dump_json().encode())
            _add(archive, "patch", b"")
            for sha256, content in self._objects.items():
                _add(archive, f"objects/{sha256}", content)
        out.seek(0)
        return out

    def _version(self, kind: str, content: bytes, mode: int) -> FileVersion:
        sha256 = hashlib.sha256(content).hexdigest()
        self._objects[sha256] = content
        return FileVersion.model_validate(
            {"kind": kind, "mode": mode, "sha256": sha256, "size_bytes": len(content)},
        )


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def tree_of(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Everything below a folder: kind, permission bits, content."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode & 0o777
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = ("symlink", 0o777, str(path.readlink()).encode())
        elif path.is_dir():
            found[name] = ("directory", mode, b"")
        elif path.is_file():
            found[name] = ("file", mode, path.read_bytes())
        else:
            found[name] = ("special", mode, b"")
    return found
