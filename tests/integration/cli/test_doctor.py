"""What the doctors find, on a real Redis."""

from __future__ import annotations

import asyncio
import json
import stat
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.versions import WIRE_NEWEST
from tests.a2a_servers import remote_service
from tests.integration.cli.conftest import WORKER, Child, Fanout
from tests.integration.models.local_servers import NAME, Kind, local_server

pytestmark = pytest.mark.redis


def test_doctor_says_what_is_missing(fanout: Fanout):
    ended = fanout("doctor", "--json", env={"FANOUT_SANDBOX__PROVIDER": "local"}, timeout=60)

    checks = {check["name"]: check for check in ended.json["checks"]}
    assert ended.json["ok"] is True
    assert ended.code == 0
    assert checks["redis"]["status"] == "ok"
    assert checks["sandbox"]["status"] == "warn"
    assert checks["workers"]["advice"] == "Start one: fanout worker"
    assert "FANOUT_BLOBS_URL" in fanout_blobs_failure(fanout)


async def test_an_agent_that_no_worker_has_is_told_where_one_looks(fanout: Fanout, ledger_url: str):
    agents = fanout.folder / "agents"
    agents.mkdir()
    (agents / "linter.yaml").write_text("name: linter\ndescription: Lints.\ninstruction: Lint.\n")
    env = {"FANOUT_AGENTS_DIR": str(agents), "FANOUT_SANDBOX__PROVIDER": "local"}
    async with connect(ledger_url) as redis:
        await Ledger(redis, Keys()).register(
            replace(WORKER, agents=("general-purpose", "researcher")), 120
        )

    submitted = await asyncio.to_thread(fanout, "submit", "lint it", "--agent", "linter", env=env)
    shown = await asyncio.to_thread(fanout, "ps", "--json")
    checked = await asyncio.to_thread(fanout, "doctor", "--json", env=env, timeout=60)

    (row,) = [each for each in shown.json["jobs"] if each["id"] == submitted.out.strip()]
    assert row["waiting_for"] == "agent linter, which no worker has read yet"
    checks = {check["name"]: check for check in checked.json["checks"]}
    assert checks["workers"]["status"] == "warn"
    assert "linter" in checks["workers"]["found"]
    assert "FANOUT_AGENTS_DIR" in checks["workers"]["advice"]


async def test_workers_of_the_release_before_are_named(fanout: Fanout, ledger_url: str):
    async with connect(ledger_url) as redis:
        await Ledger(redis, Keys()).register(replace(WORKER, name="updated"), 120)
        for number in range(10):
            old = replace(WORKER, name=f"old-{number}", wire_newest=WIRE_NEWEST - 1)
            await Ledger(redis, Keys()).register(old, 120)

    checked = await asyncio.to_thread(fanout, "doctor", "--json", timeout=60)

    [check] = [each for each in checked.json["checks"] if each["name"] == "workers"]
    assert f"1 to {WIRE_NEWEST - 1} and 1 to {WIRE_NEWEST}" in check["found"]
    assert "(old-0, old-1, old-2, old-3, old-4, old-5, old-6, old-7 and 2 more)" in check["advice"]


def test_a_skill_that_an_agent_cannot_use_is_named(fanout: Fanout):
    agents = fanout.folder / "agents"
    for name, text in {
        "skills/wide/SKILL.md": "---\nname: wide\ndescription: Use when: asked.\n---\n",
        "skills/bad/SKILL.md": "---\nname: bad\n---\n",
        "skills/group/Bad/Skill.md": "---\nname: Bad\ndescription: x\n---\n",
        "skills/moved/skill.md": "---\nname: other\ndescription: x\n---\n",
        "NOTES.md": "\0",
    }.items():
        (agents / name).parent.mkdir(parents=True, exist_ok=True)
        (agents / name).write_text(text)
    definition = (
        "name: linter\ndescription: x\ninstruction: x\nskills: [skills]\nmemory: [NOTES.md]\n"
    )
    (agents / "linter.yaml").write_text(definition)
    env = {"FANOUT_AGENTS_DIR": str(agents), "FANOUT_SANDBOX__PROVIDER": "local"}

    checks = fanout("doctor", "--json", env=env, timeout=60).json["checks"]

    assert sorted(check["found"] for check in checks if check["name"] == "agent linter") == [
        "NOTES.md: it is a binary file",
        "skills/bad/SKILL.md: description must not be empty",
        "skills/group/Bad/Skill.md: name must be lowercase kebab-case: letters, digits and hyphens",
        "skills/moved/skill.md: its name is not the name of its folder",
    ]


def fanout_blobs_failure(fanout: Fanout) -> str:
    blocked = fanout.folder / "a-file"
    blocked.write_text("")
    env = {"FANOUT_BLOBS_URL": f"file://{blocked}/blobs", "FANOUT_SANDBOX__PROVIDER": "local"}
    ended = fanout("doctor", env=env, timeout=60)
    assert ended.code == 1
    return next(line for line in ended.out.splitlines() if " blobs " in line)


@pytest.mark.parametrize(
    ("quota", "renaming", "status"),
    [("image", "yes", "ok"), ("watch", "no: the steward may not mount", "warn")],
)
async def test_it_says_what_keeps_the_disk_limits_and_whether_folders_can_be_renamed(
    fanout: Fanout, ledger_url: str, quota: str, renaming: str, status: str
):
    async with connect(ledger_url) as redis:
        told = {"disk": quota, "renaming of folders": renaming}
        worker = replace(WORKER, sandbox="docker", protection=told)
        await Ledger(redis, Keys()).register(worker, 120)

    ended = await asyncio.to_thread(fanout, "doctor", "--json", timeout=60)

    checks = {check["name"]: check for check in ended.json["checks"]}
    assert checks["disk limits"]["status"] == checks["folder renames"]["status"] == status


def test_fix_closes_what_others_can_read_and_says_what_is_left(fanout: Fanout, tmp_path: Path):
    folder = tmp_path / "configuration"
    (folder / "agents").mkdir(parents=True)
    (folder / "config.toml").write_text('[sandbox]\nprovider = "local"\n')
    (folder / ".env").write_text("OTHER=1\n")
    for path, mode in ((folder, 0o777), (folder / ".env", 0o644), (folder / "agents", 0o775)):
        path.chmod(mode)
    env = {"FANOUT_CONFIG": str(folder / "config.toml")}

    ended = fanout("doctor", "--fix", "--json", env=env, timeout=60)

    assert ended.code == 0, ended.err
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / ".env")] == [
        0o755,
        0o600,
    ]
    assert stat.S_IMODE((folder / "agents").stat().st_mode) == 0o755
    assert f"{folder / '.env'}: mode 600, closed to other users" in ended.json["fixed"]
    assert {check["name"]: check["status"] for check in ended.json["checks"]}["sandbox"] == "warn"
    again = fanout("doctor", "--fix", env=env, timeout=60)
    assert "Nothing could be fixed automatically; see the warnings." in again.err


def test_what_it_cannot_fix_is_still_a_failure(fanout: Fanout, tmp_path: Path):
    env = {
        "FANOUT_SANDBOX__PROVIDER": "docker",
        "DOCKER_HOST": f"unix://{tmp_path}/nowhere.sock",
    }

    ended = fanout("doctor", "--fix", env=env, timeout=60)

    assert ended.code == 1
    assert "No Docker engine answers" in ended.out


@pytest.mark.slow
def test_it_says_whether_remote_agents_answer(fanout: Fanout, tmp_path: Path):
    agents = tmp_path / "agents"
    agents.mkdir()
    with remote_service() as service:
        for name, url in {"far": service.url, "gone": "http://127.0.0.1:9"}.items():
            text = f"name: {name}\ndescription: Works elsewhere.\na2a: {{url: '{url}'}}\n"
            (agents / f"{name}.yaml").write_text(text)
        env = {"FANOUT_AGENTS_DIR": str(agents)}
        ended = fanout("doctor", "--json", env=env, timeout=60)
        listed = fanout("agents", env=env)

    checks = {check["name"]: check for check in ended.json["checks"]}
    assert checks["remote agent far"]["status"] == "ok"
    assert checks["remote agent far"]["found"] == "answers: JSONRPC 1.0"
    assert checks["remote agent gone"]["status"] == "warn"
    assert f"a2a {service.url.removeprefix('http://')}" in listed.out


NO_TOOLS = (400, "this model does not support tools")
ANSWERS = {
    "it works": (Kind(), "", "ok", "streaming works, tools work."),
    "its key is wrong": (Kind(key="the-key"), "another", "warn", "Invalid key"),
    "it does not listen": (None, "", "warn", "is not reached: no server listens at"),
    "it takes no tools": (
        Kind(refuses_tools=NO_TOOLS),
        "",
        "warn",
        NO_TOOLS[1],
    ),
}


def said_by(child: Child) -> Any:
    out, errors = child.communicate(b"", 60)
    assert out, f"it exited with {child.returncode} and said {errors!r}"
    return json.loads(out)


def test_call_asks_each_model_and_says_what_it_can(fanout: Fanout):
    with ExitStack() as stack:
        children = {}
        for case, (kind, key, *_) in ANSWERS.items():
            server = kind and stack.enter_context(local_server(kind))
            env = {
                "FANOUT_MODEL": f"chat/{NAME}",
                "FANOUT_SANDBOX__PROVIDER": "local",
                "OPENAI_BASE_URL": f"{server.url if server else 'http://127.0.0.1:9'}/v1",
                "OPENAI_API_KEY": key,
                "NO_PROXY": "127.0.0.1",
            }
            children[case] = fanout.start("doctor", "--call", "--json", env=env)
            stack.callback(children[case].kill)
        said = {case: said_by(child) for case, child in children.items()}

    found = {
        case: next(one for one in report["checks"] if one["name"] == "model")
        for case, report in said.items()
    }
    for case, (*_, status, text) in ANSWERS.items():
        assert (found[case]["status"], text in found[case]["found"]) == (status, True), found[case]
    assert found["its key is wrong"]["advice"] == "Set it up: fanout init"
    assert "tools" in found["it takes no tools"]["advice"]
