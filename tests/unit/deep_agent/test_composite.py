"""Several backends under one mount table."""

import pytest

from fanout.orchestrator.deep_agent.backends.composite import CompositeBackend, ReadOnlyBackend
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend, Shell
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.context.eviction import (
    CONVERSATION_HISTORY,
    LARGE_TOOL_RESULTS,
    TASK_RESULTS,
    with_artifacts,
)
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.permissions import (
    Consent,
    Permission,
    Permissions,
    PermittedBackend,
)
from fanout.orchestrator.deep_agent.tools.editing import Edit
from fanout.orchestrator.deep_agent.tools.files import Files
from fanout.orchestrator.deep_agent.tools.search import FileSearch
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted


def in_state() -> StateBackend:
    return StateBackend(DictState())


async def listed(backend: CompositeBackend, path: str) -> list[str]:
    return [entry.path for entry in (await FileSearch(backend).ls(path)).entries]


async def found(backend: Backend, pattern: str, path: str = "/") -> list[str]:
    return [entry.path for entry in (await FileSearch(backend).glob(pattern, path)).entries]


async def test_the_longest_prefix_decides_and_is_not_seen_by_its_backend() -> None:
    default, memory, deep = in_state(), in_state(), in_state()
    backend = CompositeBackend(default, {"/mem": memory, "/mem/deep/er": deep})
    for path in ("/mem/a", "/mem/deep/er/b", "/mem/deep/c", "/memory/d"):
        await backend.write_bytes(path, b"x")

    assert [
        entry.path for entry in (await memory.walk("/", max_entries=9, timeout_seconds=9)).entries
    ] == [
        "/a",
        "/deep/c",
    ]
    assert (await deep.stat("/b")).kind == "file"
    assert (await default.stat("/memory/d")).kind == "file"
    assert (await backend.read_bytes("/mem/deep/er/b", 9)) == b"x"
    assert (await backend.stat("/mem/deep/er/b")).path == "/mem/deep/er/b"


async def test_a_route_shows_what_its_backend_has_below_its_own_root(tmp_path) -> None:
    (tmp_path / "a").write_text("needle")
    backend = CompositeBackend(
        in_state(), {"/docs": DirectoryBackend(tmp_path, mount="/workspace/x")}
    )
    assert await listed(backend, "/docs") == ["/docs/a"]
    assert (await FileSearch(backend).grep("needle")).text == "/docs/a"


async def test_a_search_of_all_files_finds_those_of_routes_outside_of_the_root(tmp_path) -> None:
    state = in_state()
    routes = {"/mem": state, "/mem/in": in_state(), "/workspace/sub": in_state()}
    backend = CompositeBackend(DirectoryBackend(tmp_path, mount="/workspace"), routes)
    files = ["/workspace/a.txt", "/workspace/sub/b.txt", "/mem/c.txt", "/mem/in/d.txt"]
    for path in files:
        await backend.write_bytes(path, b"needle")
    permissions = Permissions([[Permission(mode="deny", paths=("/secret",))]])
    views: list[Backend] = [
        backend,
        OverlayBackend(backend),
        PermittedBackend(backend, permissions, Consent()),
        with_artifacts(backend, DictState()),
    ]
    for each in views:
        assert await found(each, "**/*.txt") == files
        assert (await FileSearch(each).grep("needle")).text.split("\n") == files
        assert await found(each, "*", "/workspace") == files[:1]


async def test_listings_show_routes_and_the_way_to_them() -> None:
    backend = CompositeBackend(in_state(), {"/a/b/c": in_state(), "/z": in_state()})
    await backend.write_bytes("/m", b"")
    assert await listed(backend, "/") == ["/a", "/m", "/z"]
    assert await listed(backend, "/a") == ["/a/b"]
    assert await listed(backend, "/a/b") == ["/a/b/c"]
    assert await listed(backend, "/a/b/c") == []
    for path in ("/a", "/a/b", "/a/b/c", "/z", "/"):
        assert (await backend.stat(path)).kind == "directory"


async def test_searches_span_routes_within_one_budget() -> None:
    backend = CompositeBackend(in_state(), {"/r": in_state(), "/r/s": in_state()})
    for path in ("/a", "/r/b", "/r/s/c"):
        await backend.write_bytes(path, b"needle\nneedle\n")
    assert await found(backend, "**/*") == ["/a", "/r/b", "/r/s/c"]
    assert await found(backend, "*", "/r/s") == ["/r/s/c"]
    assert (
        await FileSearch(backend).grep("needle", output_mode="count")
    ).text == "/a: 2\n/r/b: 2\n/r/s/c: 2"
    assert (await FileSearch(backend).grep("needle", "/r", "c")).text == "/r/s/c"
    walk = await backend.walk("/", max_entries=2, timeout_seconds=9)
    assert ([entry.path for entry in walk.entries], walk.complete) == (["/a", "/r/b"], False)
    hits = await backend.grep("needle", "/", only=None, max_hits=3, timeout_seconds=9)
    assert (len(hits.hits), hits.complete) == (3, False)


async def test_what_a_route_hides_in_the_default_backend_is_nowhere_to_be_seen() -> None:
    default = in_state()
    await default.write_bytes("/r/hidden", b"needle")
    backend = CompositeBackend(default, {"/r": in_state()})
    await backend.write_bytes("/r/seen", b"needle")
    assert await listed(backend, "/r") == ["/r/seen"]
    assert await found(backend, "**/*") == ["/r/seen"]
    assert (await FileSearch(backend).grep("needle")).text == "/r/seen"
    with pytest.raises(FileNotFoundError):
        await backend.read_bytes("/r/hidden", 9)


async def test_no_tool_replaces_or_removes_a_route_or_the_way_to_it() -> None:
    backend = CompositeBackend(in_state(), {"/a/b": in_state()})
    await backend.write_bytes("/a/b/c", b"x")
    files = Files(backend)
    for path in ("/a", "/a/b"):
        for attempt in (files.delete(path), files.write(path, "x"), files.read(path)):
            with pytest.raises(ToolMistake):
                await attempt
        with pytest.raises(IsADirectoryError):
            await backend.write_bytes(path, b"x")
    await files.delete("/a/b/c")
    assert await listed(backend, "/a/b") == []


async def test_a_missing_path_is_missing_on_every_side() -> None:
    backend = CompositeBackend(in_state(), {"/r": in_state()})
    for path in ("/none", "/r/none"):
        for attempt in (
            backend.stat(path),
            backend.list(path),
            backend.read_bytes(path, 1),
            backend.delete(path),
            backend.walk(path, max_entries=1, timeout_seconds=1),
            backend.grep("x", path, only=None, max_hits=1, timeout_seconds=1),
        ):
            with pytest.raises(FileNotFoundError):
                await attempt


async def test_commands_run_on_the_default_backend_alone(tmp_path) -> None:
    backend = CompositeBackend(LocalShellBackend(tmp_path), {"/r": in_state()})
    assert isinstance(backend, Shell)
    assert (await backend.execute("pwd", 10, 1000)).text == f"{tmp_path}\n"
    assert not isinstance(CompositeBackend(in_state(), {"/r": LocalShellBackend(tmp_path)}), Shell)


@pytest.mark.parametrize("prefix", ["", "/", "r", "/r/../x", "//r"])
def test_a_route_is_a_normalised_absolute_path(prefix: str) -> None:
    with pytest.raises(ValueError, match="route"):
        CompositeBackend(in_state(), {prefix: in_state()})


async def test_a_read_only_backend_is_read_and_never_changed() -> None:
    inner = in_state()
    await inner.write_bytes("/a", b"needle")
    backend = CompositeBackend(in_state(), {"/ro": ReadOnlyBackend(inner)})
    files = Files(backend)
    assert "needle" in (await files.read("/ro/a")).content
    assert await found(backend, "**/*") == ["/ro/a"]
    assert (await FileSearch(backend).grep("needle")).text == "/ro/a"
    assert await listed(backend, "/ro") == ["/ro/a"]
    for attempt in (
        files.write("/ro/b", "x"),
        files.edit("/ro/a", [Edit("needle", "x")]),
        files.delete("/ro/a"),
    ):
        with pytest.raises(ToolMistake, match="Permission denied"):
            await attempt
    assert (await inner.stat("/a")).size_bytes == 6


async def test_an_agents_artifacts_are_in_its_session_and_not_in_its_workspace(tmp_path) -> None:
    path = f"{LARGE_TOOL_RESULTS}/1"
    replies = [
        {"calls": [call("write_file", file_path=path, content="big")]},
        {
            "calls": [
                call("ls", path="/"),
                call("ls", path=CONVERSATION_HISTORY),
                call("glob", pattern="**/*"),
            ]
        },
        {"text": "done"},
    ]
    run = await Run(scripted(replies), backend=DirectoryBackend(tmp_path)).to_end()
    _, top, history, everything = run.results
    assert [entry["path"] for entry in top["entries"]] == [
        CONVERSATION_HISTORY,
        LARGE_TOOL_RESULTS,
        TASK_RESULTS,
        "/workspace",
    ]
    assert history == {"status": "success", "entries": []}
    assert everything["entries"] == []
    assert list(tmp_path.iterdir()) == []
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    assert session.state[f"file:{path}"]["content"] == "big"


async def test_a_slash_at_the_end_of_a_route_means_nothing() -> None:
    backend = CompositeBackend(in_state(), {"/r/": in_state()})
    await backend.write_bytes("/r/a", b"x")
    assert await listed(backend, "/r") == ["/r/a"]
    with pytest.raises(ValueError, match="same prefix"):
        CompositeBackend(in_state(), {"/r/": in_state(), "/r": in_state()})


async def test_commands_may_run_beside_the_files(tmp_path) -> None:
    backend = CompositeBackend(in_state(), {}, shell=LocalShellBackend(tmp_path))
    assert isinstance(backend, Shell)
    assert (await backend.execute("pwd", 10, 1_000)).text == f"{tmp_path}\n"
