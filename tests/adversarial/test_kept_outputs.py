"""Commands whose whole outputs cannot be kept harm nobody but themselves."""

import asyncio
import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.protocol import Execution
from fanout.orchestrator.portable import command_output
from fanout.orchestrator.portable.command_output import BoundedOutput, OutputFiles, WholeOutput
from fanout.workers.sandbox.inside.commands import create_output

LONG = "seq 1 60000"


async def run(backend: LocalShellBackend) -> Execution:
    return await backend.execute(LONG, 20, 1000)


def failing(write: Callable[[int, bytes], int], after_bytes: int) -> Callable[[int, bytes], int]:
    """A disk that is full after so many bytes."""
    left = after_bytes

    def limited(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:left])
        left -= written
        return written

    return limited


async def test_on_a_full_disk_a_command_ends_as_always_and_its_cut_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_output.os, "write", failing(os.write, 5000))

    cut = await run(LocalShellBackend(tmp_path))

    assert cut.exit_code == 0
    assert cut.output_file is not None
    assert cut.output_file.size_bytes == 5000
    assert f"Only its first 5000 bytes are in {cut.output_file.path}" in cut.text


async def test_without_any_room_the_mark_says_that_nothing_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_output.os, "write", failing(os.write, 0))

    cut = await run(LocalShellBackend(tmp_path))

    assert cut.output_file is None
    assert "The whole output could not be kept" in cut.text


def test_the_oldest_outputs_are_deleted_when_all_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_output, "MAX_OUTPUT_FILES_BYTES", 250)
    deleted: list[str] = []
    files = OutputFiles("/x", lambda _: 0, deleted.append)

    for name in "abcd":
        files.keep(name, 100)

    assert deleted == ["a", "b"]


def test_in_a_sandbox_an_output_is_written_through_no_link_and_the_oldest_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_output, "MAX_OUTPUT_FILES_BYTES", 150)
    monkeypatch.setattr(command_output.os, "urandom", bytes)
    folder, target = tmp_path / "outputs", tmp_path / "target"
    folder.mkdir()
    target.write_text("of the job")
    (folder / "1-000000.txt").symlink_to(target)
    files = OutputFiles(str(folder), create_output, os.unlink)

    trap = WholeOutput(files)
    trap.add(b"x" * 100, BoundedOutput.halves(10))
    trap.close()
    written = []
    for _ in range(2):
        written.append(WholeOutput(files))
        written[-1].add(b"y" * 100, BoundedOutput.halves(10))
        written[-1].close()

    assert (trap.path, trap.size_bytes, target.read_text()) == ("", 0, "of the job")
    assert [Path(each.path).exists() for each in written] == [False, True]


def test_the_outputs_of_a_local_shell_go_with_its_backend(tmp_path: Path) -> None:
    backend = LocalShellBackend(tmp_path)
    cut = asyncio.run(run(backend))
    assert cut.output_file is not None
    file = Path(cut.output_file.path)
    assert file.read_text() == "".join(f"{number}\n" for number in range(1, 60_001))
    assert file.parent.stat().st_mode & 0o077 == 0

    del backend
    gc.collect()

    assert not file.parent.exists()


def test_the_outputs_that_a_killed_process_left_are_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys; from pathlib import Path;"
        "from fanout.orchestrator.deep_agent import LocalShellBackend;"
        "shell = LocalShellBackend(Path(sys.argv[1]));"
        "cut = asyncio.run(shell.execute('seq 1 60000', 20, 1000));"
        "print(cut.output_file.path, flush=True); os._exit(1)"
    )
    argv = [sys.executable, "-P", "-c", program, str(tmp_path)]
    left = Path(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip())
    assert left.is_file()

    backend = LocalShellBackend(tmp_path)
    assert asyncio.run(run(backend)).output_file is not None

    assert not left.exists()
