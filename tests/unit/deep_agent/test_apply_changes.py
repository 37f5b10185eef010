"""What becomes of a sub-agent's staged changes when its parent's files changed meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.delegation.apply_changes import AppliedChanges, apply_changes
from fanout.orchestrator.deep_agent.failures import ToolMistake

OLD = b"one\ntwo\nthree\nfour\nfive\n"


@asynccontextmanager
async def unlocked(path: str) -> AsyncIterator[None]:
    del path
    yield


@pytest.fixture(params=["state", "directory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return (
        StateBackend(DictState())
        if request.param == "state"
        else DirectoryBackend(tmp_path, mount="/")
    )


async def committed(overlay: OverlayBackend, base: Backend) -> AppliedChanges:
    return await apply_changes(overlay, base, unlocked)


async def text(backend: Backend, path: str = "/f") -> bytes | None:
    try:
        return await backend.read_bytes(path, 10_000)
    except FileNotFoundError:
        return None


async def test_until_the_commit_only_the_overlay_has_the_changes(base: Backend) -> None:
    await base.write_bytes("/f", OLD)
    await base.write_bytes("/gone", OLD)
    overlay = OverlayBackend(base)
    await overlay.write_bytes("/f", b"new")
    await overlay.write_bytes("/d/added", b"added", create_only=True)
    await overlay.delete("/gone")
    assert (await text(base), await text(base, "/d/added"), await text(base, "/gone")) == (
        OLD,
        None,
        OLD,
    )
    assert (await text(overlay), await text(overlay, "/d/added"), await text(overlay, "/gone")) == (
        b"new",
        b"added",
        None,
    )
    done = await committed(overlay, base)
    assert [(file.path, file.change) for file in done.applied] == [
        ("/d/added", "added"),
        ("/f", "modified"),
        ("/gone", "deleted"),
    ]
    assert (await text(base), await text(base, "/d/added"), await text(base, "/gone")) == (
        b"new",
        b"added",
        None,
    )


@pytest.mark.parametrize(
    ("theirs", "here", "reason"),
    [
        (
            b"one!\ntwo\nthree\nfour\nfive\n",
            b"ONE\ntwo\nthree\nfour\nfive\n",
            "changed the same lines",
        ),
        (b"changed", None, "here it was deleted"),
        (None, b"changed", "deleted it; here it was changed"),
        (b"\0binary", b"changed", "not text"),
    ],
)
async def test_what_collides_is_told_and_nothing_is_overwritten(
    base: Backend, theirs: bytes | None, here: bytes | None, reason: str
) -> None:
    await base.write_bytes("/f", OLD)
    overlay = OverlayBackend(base)
    await (overlay.delete("/f") if theirs is None else overlay.write_bytes("/f", theirs))
    await (base.delete("/f") if here is None else base.write_bytes("/f", here))
    done = await committed(overlay, base)
    assert not done.applied
    assert reason in done.conflicts[0].reason
    assert await text(base) == here


async def test_two_that_made_the_same_file_differently_collide(base: Backend) -> None:
    overlay = OverlayBackend(base)
    await overlay.write_bytes("/f", b"mine\n", create_only=True)
    await base.write_bytes("/f", b"theirs\n")
    (conflict,) = (await committed(overlay, base)).conflicts
    assert "Both sides made it" in conflict.reason
    assert "+mine" in conflict.diff


async def test_the_same_change_on_both_sides_is_no_conflict(base: Backend) -> None:
    await base.write_bytes("/f", OLD)
    overlay = OverlayBackend(base)
    await overlay.write_bytes("/f", b"same")
    await base.write_bytes("/f", b"same")
    assert not (await committed(overlay, base)).conflicts


async def test_a_deleted_directory_keeps_what_others_put_in_it_meanwhile(base: Backend) -> None:
    await base.write_bytes("/d/a", OLD)
    await base.write_bytes("/e/a", OLD)
    overlay = OverlayBackend(base)
    await overlay.delete("/d")
    await overlay.delete("/e")
    await base.write_bytes("/d/new", b"new")
    await committed(overlay, base)
    assert (await text(base, "/d/a"), await text(base, "/d/new")) == (None, b"new")
    with pytest.raises(FileNotFoundError):
        await base.stat("/e")


async def test_an_edit_of_what_is_not_there_any_more_is_refused(base: Backend) -> None:
    await base.write_bytes("/f", OLD)
    overlay = OverlayBackend(base)
    await overlay.read_bytes("/f", 10_000)
    await base.write_bytes("/f", b"changed")
    with pytest.raises(ToolMistake, match="changed since you read it"):
        await overlay.write_bytes("/f", b"made of the old")


async def test_changes_go_on_in_another_process(base: Backend) -> None:
    await base.write_bytes("/f", OLD)
    first, second = OverlayBackend(base), OverlayBackend(base)
    await first.write_bytes("/f", b"\xff\0")
    await first.delete("/f")
    await first.write_bytes("/g", b"\xff\0")
    second.load(first.dump())
    assert second.changes == first.changes


async def test_what_does_not_fit_into_memory_is_refused(
    base: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.deep_agent.backends.overlay.MAX_STAGED_BYTES", 10)
    overlay = OverlayBackend(base)
    await overlay.write_bytes("/a", b"x" * 6)
    with pytest.raises(ToolMistake, match="would exceed 10 bytes"):
        await overlay.write_bytes("/b", b"x" * 6)


async def test_other_line_ends_are_no_conflict_where_git_does_not_store_them(base: Backend) -> None:
    await base.write_bytes("/.gitattributes", b"* text\n")
    await base.write_bytes("/f", OLD)
    overlay = OverlayBackend(base)
    await overlay.write_bytes("/f", OLD.replace(b"five", b"FIVE").replace(b"\n", b"\r\n"))
    await base.write_bytes("/f", OLD.replace(b"one", b"ONE"))

    assert not (await committed(overlay, base)).conflicts
    assert await text(base) == OLD.replace(b"one", b"ONE").replace(b"five", b"FIVE")
