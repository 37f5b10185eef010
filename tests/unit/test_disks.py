"""What a steward does with the disk below it, and the disks that it makes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fanout.workers.sandbox.inside import disks

needs_mkfs = pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="there is no mkfs.ext4")


@needs_mkfs
@pytest.mark.slow
def test_a_copied_disk_is_the_same_and_takes_no_more_space(tmp_path: Path) -> None:
    disks.make(tmp_path / "template", 1 << 30)

    disks.copy(tmp_path / "template", tmp_path / "image")

    subprocess.run(["cmp", tmp_path / "template", tmp_path / "image"], check=True)
    taken = disks.allocated(tmp_path / "template")
    assert taken is not None
    assert (disks.allocated(tmp_path / "image") or 0) <= taken


def test_a_sparse_file_without_data_and_one_that_ends_with_data_are_copied(tmp_path: Path) -> None:
    for name, data in (("hole", b""), ("end", b"end")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 20)
            file.seek(1 << 20)
            file.write(data)
        disks.copy(tmp_path / name, tmp_path / f"{name}-copy")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"{name}-copy").read_bytes()


def test_folders_are_spread_where_the_disk_can(tmp_path: Path) -> None:
    disks.spread_folders(tmp_path)

    listed = subprocess.run(["lsattr", "-d", tmp_path], capture_output=True, check=False)
    kind = subprocess.run(["stat", "-fc", "%T", tmp_path], capture_output=True, check=True)
    if kind.stdout.startswith(b"ext") and os.geteuid() == 0:
        assert b"T" in listed.stdout.split()[0]


def test_a_folder_that_cannot_be_spread_is_no_failure(tmp_path: Path) -> None:
    disks.spread_folders(tmp_path / "nowhere")

    assert not (tmp_path / "nowhere").exists()
