"""A running worker reads again what a person changes, and keeps what it has if that is invalid."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from fanout.orchestrator.configuration import live_definitions
from fanout.orchestrator.configuration.configuration_file import key_names
from fanout.orchestrator.jobs.worker_info import WorkerInfo, read_worker
from fanout.workers.agent.services import LiveConfiguration

AGENT = "name: mine\ndescription: {}\ninstruction: i\nmemory: [HOUSE.md]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder, with an agent."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("FANOUT_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "HOUSE.md").write_text("Old rules.")
    (tmp_path / "agents" / "mine.yaml").write_text(AGENT.format("old"))
    return tmp_path


def no_secrets() -> dict[str, SecretStr]:
    return {}


async def test_definitions_and_their_files_are_read_again_and_invalid_ones_are_not_used(
    folder: Path,
) -> None:
    live = await asyncio.to_thread(LiveConfiguration, folder / "agents", no_secrets)
    definitions, before = live.definitions, live.definitions.digests()
    await live.refresh()
    assert definitions.digests() == before

    (folder / "agents" / "HOUSE.md").write_text("New rules, longer.")
    await live.refresh()
    rules = definitions.digests()
    (folder / "agents" / "mine.yaml").write_text("name: mine\ncolour: red\n")
    await live.refresh()
    assert definitions.digests() == rules
    (folder / "agents" / "mine.yaml").write_text(AGENT.format("newer"))
    await live.refresh()

    assert {name for name in before if before[name] != rules[name]} == {"mine"}
    assert definitions["mine"].description == "newer"
    assert definitions is live.definitions
    (folder / "agents" / "mine.yaml").unlink()
    await live.refresh()
    assert "mine" not in definitions


async def test_jobs_that_begin_at_once_share_a_look_and_all_see_a_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await asyncio.to_thread(LiveConfiguration, folder / "agents", no_secrets)
    looks: list[Path | None] = []
    look = live_definitions._stamps

    def counted(folder: Path | None) -> Iterator[live_definitions.Stamp]:
        looks.append(folder)
        return look(folder)

    monkeypatch.setattr(live_definitions, "_stamps", counted)
    first = asyncio.create_task(live.refresh())
    await asyncio.sleep(0)
    (folder / "agents" / "mine.yaml").write_text(AGENT.format("newer"))

    async def seen_by_a_job() -> str:
        await live.refresh()
        return live.definitions["mine"].description

    assert set(await asyncio.gather(*(seen_by_a_job() for _ in range(50)))) == {"newer"}
    await first
    assert len(looks) == 2


async def test_keys_of_the_dotenv_are_replaced_and_removed_and_exported_ones_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "exported")
    secrets = {"GIT_TOKEN": SecretStr("old-token")}
    env = folder / ".env"
    env.write_text("GOOGLE_API_KEY=old\nANTHROPIC_API_KEY=a\nOPENAI_API_KEY=of-the-file\n")
    live = await asyncio.to_thread(LiveConfiguration, None, lambda: secrets)

    secrets = {"OTHER_TOKEN": SecretStr("new-token")}
    env.write_text("GOOGLE_API_KEY=newer\nOPENAI_API_KEY=of-the-file\n")
    await live.refresh()

    assert key_names() == ("GOOGLE_API_KEY", "OPENAI_API_KEY")
    assert (os.environ["GOOGLE_API_KEY"], os.environ["OPENAI_API_KEY"]) == ("newer", "exported")
    assert [*live.secrets] == ["OTHER_TOKEN"]
    (folder / "config.toml").unlink()
    env.unlink()
    await live.refresh()  # without its configuration it goes on with what it has
    assert os.environ["GOOGLE_API_KEY"] == "newer"


def test_a_registration_has_names_and_fingerprints_and_no_values() -> None:
    made = WorkerInfo("w", "h", 1, 0, "local", definitions={"a": "1f"}, keys=("A_API_KEY",))
    fields = {name: str(value) for name, value in made.fields().items()}

    assert read_worker(WorkerInfo, "w", fields) == made
    del fields["definitions"], fields["keys"]
    assert (
        read_worker(WorkerInfo, "w", fields).definitions,
        read_worker(WorkerInfo, "w", fields).keys,
    ) == ({}, ())


async def test_a_thousand_jobs_that_wait_for_a_look_go_on_in_the_same_steps_of_the_loop(
    folder: Path,
) -> None:
    live = await asyncio.to_thread(LiveConfiguration, folder / "agents", no_secrets)
    went_on: list[int] = []
    steps = 0

    async def count_steps() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    async def begin_a_job() -> None:
        await live.refresh()
        went_on.append(steps)

    first = asyncio.create_task(live.refresh())
    await asyncio.sleep(0)
    counting = asyncio.create_task(count_steps())
    await asyncio.gather(*(begin_a_job() for _ in range(1000)))
    counting.cancel()
    await first

    assert max(went_on) - min(went_on) <= 2
