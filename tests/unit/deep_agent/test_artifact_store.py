"""Files as artifacts: shared by a user's sessions, unseen by others, and many at once."""

import asyncio
from pathlib import Path

import pytest
from google.adk.artifacts import (
    BaseArtifactService,
    FileArtifactService,
    InMemoryArtifactService,
)

from fanout.orchestrator.deep_agent import ArtifactBackend, CompositeBackend, StoreBackend
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

AWKWARD = [
    "/versions",
    "/v/versions/a",
    "/metadata.json",
    "/a /b ",
    "/dot./..c",
    "/back\\slash",
    "/C:/x",
    "/100%25+",
    "/line\nend",
    "/ümläut/日本",
    "/user:x",
]


@pytest.fixture(params=["memory", "files"])
def artifact_service(request: pytest.FixtureRequest, tmp_path: Path) -> BaseArtifactService:
    return InMemoryArtifactService() if request.param == "memory" else FileArtifactService(tmp_path)


def store(
    service: BaseArtifactService, user: str = "u", namespace: str = "memories"
) -> StoreBackend:
    return StoreBackend(service, app_name="app", user_id=user, namespace=namespace)


async def test_two_sessions_of_a_user_share_what_one_agent_remembers(
    artifact_service: BaseArtifactService,
) -> None:
    def files() -> CompositeBackend:
        return CompositeBackend(StateBackend(DictState()), {"/memories": store(artifact_service)})

    told = [
        {
            "calls": [
                call("write_file", file_path="/memories/likes.md", content="tea"),
                call("write_file", file_path="/scratch.md", content="x"),
            ]
        },
        {"text": "done"},
    ]
    asked = [
        {
            "calls": [
                call("read_file", file_path="/memories/likes.md"),
                call("read_file", file_path="/scratch.md"),
            ]
        },
        {"text": "done"},
    ]
    await Run(scripted(told), backend=files()).to_end()
    found = await Run(scripted(asked), backend=files()).to_end()
    assert "tea" in str(found.results[0])
    assert found.results[1]["status"] == "error"


async def test_namespaces_users_and_sessions_do_not_see_each_other(
    artifact_service: BaseArtifactService,
) -> None:
    await store(artifact_service).write_bytes("/a", b"1")
    session = ArtifactBackend(artifact_service, app_name="app", user_id="u", session_id="s")
    await session.write_bytes("/b", b"2")
    others = [
        store(artifact_service, namespace="memories2"),
        store(artifact_service, namespace="memo"),
        store(artifact_service, user="v"),
        ArtifactBackend(artifact_service, app_name="app", user_id="u", session_id="t"),
    ]
    for other in others:
        assert await other.list("/") == []
    assert [entry.path for entry in await session.list("/")] == ["/b"]
    assert [entry.path for entry in await store(artifact_service).list("/")] == ["/a"]


@pytest.mark.parametrize("namespace", ["", "a/b"])
def test_a_namespace_is_one_name(namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        store(InMemoryArtifactService(), namespace=namespace)


async def test_no_name_is_lost_or_mistaken_for_another(
    artifact_service: BaseArtifactService,
) -> None:
    files = store(artifact_service)
    for path in AWKWARD:
        await files.write_bytes(path, path.encode())
    walk = await files.walk("/", max_entries=100, timeout_seconds=5)
    assert [entry.path for entry in walk.entries] == sorted(AWKWARD)
    for path in AWKWARD:
        assert await files.read_bytes(path, 100) == path.encode()


async def test_an_empty_file_is_a_file_and_a_deleted_one_is_gone(
    artifact_service: BaseArtifactService,
) -> None:
    files = store(artifact_service)
    await files.write_bytes("/d/empty", b"")
    assert (await files.stat("/d/empty")).size_bytes == 0
    assert await files.read_bytes("/d/empty", 10) == b""
    await files.delete("/d")
    with pytest.raises(FileNotFoundError):
        await files.stat("/d")


async def test_one_of_many_creates_a_file_and_all_others_are_told(
    artifact_service: BaseArtifactService,
) -> None:
    async def create(number: int) -> bool:
        try:
            await store(artifact_service).write_bytes("/one", b"%d" % number, create_only=True)
        except FileExistsError:
            return False
        return True

    created = await asyncio.gather(*map(create, range(20)))
    assert sum(created) == 1
    assert await store(artifact_service).read_bytes("/one", 10) == b"%d" % created.index(True)


@pytest.mark.slow
async def test_a_thousand_files_are_written_listed_and_searched(
    artifact_service: BaseArtifactService,
) -> None:
    files = store(artifact_service)
    for number in range(1_000):
        await files.write_bytes(f"/{number % 10}/{number}", b"text %d" % number)
    walk = await files.walk("/", max_entries=10_000, timeout_seconds=30)
    listed = await files.list("/3")
    hits = await files.grep("text 77", "/", only=None, max_hits=100, timeout_seconds=30)
    assert (len(walk.entries), len(listed), len(hits.hits)) == (1_000, 100, 11)
