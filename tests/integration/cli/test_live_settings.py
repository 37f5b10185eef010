"""Settings, keys and agents reach the next job, and leave those that run with theirs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.embedded.child_process import ChildProcess
from fanout.orchestrator.embedded.liveness import living_workers
from tests.integration.cli.conftest import Ended, Fanout, in_folders
from tests.integration.cli.test_embedded import within
from tests.integration.cli.test_run import ended, started, with_services

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

RUN = ("run", "--yes", "--workspace", "b")
AGENT = "name: {name}\ndescription: d\ninstruction: i\n{more}"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Fanout]:
    """The command line with services and a configuration of its own, without agents."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").touch()
    for made in with_services(tmp_path):
        given = {"FANOUT_CONFIG": str(tmp_path / "config" / "config.toml")}
        yield in_folders(Fanout(made.folder, made.env | given))


def state(fanout: Fanout) -> StateFolder:
    return StateFolder(Path(fanout.env["FANOUT_STATE_DIR"]))


def pids(fanout: Fanout) -> set[int | None]:
    return {worker.pid for worker in living_workers(state(fanout)).values()}


def runs(fanout: Fanout, *options: str, **exported: str) -> Ended:
    return fanout(*RUN, "quick", *options, env=exported, timeout=90)


def workers_of_tree(fanout: Fanout, root_id: str) -> set[str]:
    """Return the workers that a tree's jobs ran on."""
    jobs = fanout("ps", "--all", "--json").json["jobs"]
    return {job["worker"] for job in jobs if job["root_id"].endswith(root_id)}


def define(folder: Path, name: str, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(AGENT.format(name=name, more=more))
    return path


def test_a_command_with_another_key_gets_a_worker_with_it_while_a_tree_goes_on_with_its_own(
    apart: Fanout,
) -> None:
    child, root_id = started(apart, "slow")
    (first,) = pids(apart)

    told = runs(apart, SOME_API_KEY="canary-key-of-the-person")

    assert told.code == 0, told.err
    assert "Settings changed: starting a worker with them …" in told.err
    (second,) = pids(apart) - {first}
    assert ended(child).code == 0
    (worker,) = workers_of_tree(apart, root_id)  # also that of the tasks that it started meanwhile
    assert worker.endswith(f"-{first}")
    assert within(60, lambda: pids(apart) == {second})  # nobody uses the first one any more
    assert runs(apart, SOME_API_KEY="canary-key-of-the-person").code == 0
    assert pids(apart) == {second}
    keeper = ChildProcess(state(apart).path, "keeper")
    for pid in (second, keeper.pid):  # jobs without isolation may read it
        assert b"canary-key" not in Path(f"/proc/{pid}/environ").read_bytes()
    for file in state(apart).path.glob("*"):
        assert not file.is_file() or b"canary-key" not in file.read_bytes(), file


def test_a_killed_worker_is_started_again_with_the_settings_of_its_own_run(apart: Fanout) -> None:
    child, long_id = started(apart, "long")
    ((pool, first),) = living_workers(state(apart)).items()
    assert runs(apart, SOME_API_KEY="another-key").code == 0
    assert first.pid is not None
    killed = first.pid

    os.killpg(killed, signal.SIGKILL)

    assert within(60, lambda: first.pid not in {None, killed})
    assert pool in living_workers(state(apart))
    assert within(60, lambda: running_on(apart, long_id).endswith(f"-{first.pid}"))
    assert apart("cancel", long_id).code == 0
    ended(child)


def running_on(fanout: Fanout, job_id: str) -> str:
    record = fanout("show", job_id, "--json").json
    return str(record["worker"]) if record["state"] == "running" else ""


def test_agents_are_read_again_and_an_invalid_one_leaves_the_others_alone(apart: Fanout) -> None:
    child, long_id = started(apart, "long")
    before, agents = pids(apart), apart.folder / "config" / "agents"

    mine = define(agents, "mine")  # there was no folder when the worker started
    assert runs(apart, "--agent", "mine").code == 0
    define(agents, "broken", "tolls: [execute]\n")
    told = runs(apart, "--agent", "mine")
    refused = runs(apart, "--agent", "broken")
    mine.unlink()
    gone = runs(apart, "--agent", "mine")

    assert told.code == 0
    assert "broken.yaml:4: unknown key 'tolls'. Did you mean tools?" in told.err
    assert (refused.code, "broken.yaml:4" in refused.err) == (2, True), refused.err
    assert (gone.code, "there is no agent 'mine'" in gone.err) == (2, True), gone.err
    assert pids(apart) == before
    assert apart("cancel", long_id).code == 0
    ended(child)


def test_a_changed_file_and_an_exported_folder_reach_the_next_job_while_another_one_waits(
    apart: Fanout,
) -> None:
    elsewhere, config = apart.folder / "elsewhere", apart.folder / "config" / "config.toml"
    define(elsewhere, "mine")
    child, long_id = started(apart, "long")
    before = pids(apart)

    exported = runs(apart, "--agent", "mine", FANOUT_AGENTS_DIR=str(elsewhere))
    config.write_text("[limits]\nmax_model_calls = 1\n")
    limited = runs(apart)
    config.write_text(f'agents_dir = "{elsewhere}"\n')
    named = runs(apart, "--agent", "mine")

    assert exported.code == 0, exported.err
    assert (limited.code, "max_model_calls" in limited.err + limited.out) == (1, True), limited
    assert named.code == 0, named.err
    assert before < pids(apart)
    assert apart("cancel", long_id).code == 0
    ended(child)
