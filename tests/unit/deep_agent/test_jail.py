"""No path leads out of a directory backend's root."""

import asyncio
import contextlib
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.orchestrator.deep_agent.backends import matching
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend, DirectoryJail
from fanout.orchestrator.deep_agent.failures import ToolMistake
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

SECRET = b"outside"
names = st.sampled_from(
    ["a", "b", "..", ".", "out", "up", "abs", "in", "loop", "~", "", "secret", "/etc", "\\"]
)
raw_paths = st.lists(names, max_size=7).map("/".join).map("/".__add__)


@pytest.fixture(scope="module")
def jail():
    with tempfile.TemporaryDirectory() as folder:
        outside, root = Path(folder) / "outside", Path(folder) / "root"
        (root / "a" / "b").mkdir(parents=True)
        outside.mkdir()
        (outside / "secret").write_bytes(SECRET)
        (root / "a" / "secret").write_bytes(b"inside")
        (root / "out").symlink_to(outside)
        (root / "a" / "up").symlink_to("../..")
        (root / "abs").symlink_to(outside / "secret")
        (root / "in").symlink_to(root / "a")
        (root / "a" / "in").symlink_to("../a/secret")
        (root / "loop").symlink_to("loop")
        yield root, outside


@given(raw_paths)
@settings(max_examples=400, deadline=None)
@pytest.mark.slow
def test_whatever_the_path_a_read_never_sees_the_outside(jail, path):
    root, _ = jail
    backend = DirectoryBackend(root, mount="/")
    try:
        data = asyncio.run(backend.read_bytes(matching.checked_path(path), 100))
    except (ToolMistake, OSError):
        return
    assert data == b"inside"


@given(st.lists(names, max_size=7))
@settings(max_examples=400, deadline=None)
def test_the_jail_holds_even_for_names_that_the_tools_refuse(jail, parts):
    root, _ = jail
    inside = {Path(folder).stat().st_ino for folder, _, _ in os.walk(root)}
    try:
        with DirectoryJail(root).place(
            [part for part in parts if part and "/" not in part], follow_last=True
        ) as place:
            assert os.fstat(place.directory).st_ino in inside
    except OSError:
        pass


async def test_links_out_are_refused_for_every_operation_and_links_inside_work(jail):
    root, outside = jail
    backend = DirectoryBackend(root, mount="/")
    assert await backend.read_bytes("/in/secret", 10) == b"inside"
    assert await backend.read_bytes("/a/in", 10) == b"inside"
    for path in ("/out/secret", "/abs", "/a/up/outside/secret", "/loop"):
        with pytest.raises(PermissionError):
            await backend.read_bytes(path, 10)
        with pytest.raises(PermissionError):
            await backend.write_bytes(path, b"x")
    with pytest.raises(PermissionError):
        await backend.list("/out")
    with pytest.raises(PermissionError):
        await backend.write_bytes("/out/new", b"x", create_only=True)
    with pytest.raises(PermissionError):
        await backend.delete("/out/secret")
    assert sorted(item.name for item in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_bytes() == SECRET


async def test_searches_do_not_follow_links(jail):
    root, _ = jail
    backend = DirectoryBackend(root, mount="/")
    walk = await backend.walk("/", max_entries=100, timeout_seconds=5)
    assert {entry.kind for entry in walk.entries if entry.path == "/out"} == {"symlink"}
    assert not [entry for entry in walk.entries if entry.path.startswith("/out/")]
    found = await backend.grep("outside", "/", only=None, max_hits=9, timeout_seconds=5)
    assert found.hits == ()
    found = await backend.grep(
        "outside", "/", only=["/abs", "/out/secret"], max_hits=9, timeout_seconds=5
    )
    assert found.hits == ()


async def test_deleting_a_link_leaves_what_it_points_to(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "keep").write_text("x")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    await DirectoryBackend(tmp_path / "root", mount="/").delete("/link")
    assert (tmp_path / "outside" / "keep").exists()
    assert not (tmp_path / "root" / "link").is_symlink()


async def test_a_directory_that_is_swapped_for_a_link_while_files_are_written_leads_nowhere(
    tmp_path,
):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                (root / "door").mkdir(exist_ok=True)
                (root / "door").rename(root / f"old{os.urandom(4).hex()}")
                (root / "door").symlink_to(outside)
                (root / "door").unlink()

    swapper = threading.Thread(target=swap)
    swapper.start()
    backend = DirectoryBackend(root, mount="/")
    try:
        for number in range(300):
            try:
                await backend.write_bytes(f"/door/{number}", b"x")
            except OSError:
                continue
    finally:
        stop.set()
        swapper.join()
    assert list(outside.iterdir()) == []


async def test_an_edit_keeps_the_mode_and_a_pipe_does_not_block(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("a")
    script.chmod(0o751)
    os.mkfifo(tmp_path / "pipe")
    backend = DirectoryBackend(tmp_path)
    await backend.write_bytes("/workspace/run.sh", b"b")
    assert script.stat().st_mode & 0o777 == 0o751
    with pytest.raises(PermissionError):
        await asyncio.wait_for(backend.read_bytes("/workspace/pipe", 10), 60)
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".fanout-")] == []


async def test_links_in_circles_and_pipes_are_called_that(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    made = [call("read_file", file_path=name) for name in ("pipe", "loop")]
    model = scripted([{"calls": made}, {"text": "done"}])
    run = await Run(model, backend=DirectoryBackend(tmp_path)).to_end()
    assert [result["error"] for result in run.results] == [
        "Not a regular file: /workspace/pipe",
        "The path leads in circles: /workspace/loop",
    ]


@given(st.text(max_size=60))
@settings(max_examples=500, deadline=None)
def test_an_accepted_path_is_absolute_normal_and_encodable(path):
    try:
        normal = matching.checked_path(path)
    except ToolMistake:
        return
    assert normal.startswith("/")
    assert ".." not in normal.split("/")
    assert matching.checked_path(normal) == normal
    normal.encode()
