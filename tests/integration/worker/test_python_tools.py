"""An operator's functions in Python as tools of agents: each call is a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.cli.checks.tools import tool_checks
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.configuration.tool_settings import PythonToolSettings
from fanout.orchestrator.extras.python_tools.tool import PythonTools
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, call, calls, conversation, says
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

CANARY = "canary-jira-token-2213"
NO_CONTEXT: Any = None
REPORT = says("## Summary\n{{last_result}}")
MODULE = '''
import asyncio, os, subprocess, sys, time
from pathlib import Path
from typing import Any
from typing import Literal


def jira_lookup(key: str, fields: list[str] | None = None, order: Literal["asc", "desc"] = "asc"):
    """Look an issue up.

    Args:
        key: Its key, such as APP-7.
    """
    print("this is not the answer")
    if key == "APP-0":
        raise LookupError("there is no issue APP-0; my token is " + os.environ["JIRA_TOKEN"])
    names = sorted(name for name in os.environ if name.startswith(("FANOUT_", "JIRA_", "OTHER_")))
    return {"key": key, "order": order, "environment": names, "pid": os.getpid()}


async def slow(folder: str) -> str:
    """Wait."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(folder, "pids").write_text(f"{os.getpid()} {child.pid}")
    await asyncio.sleep(1000)


def hungry() -> int:
    """Use much memory."""
    return len(bytearray(10**10))


def long() -> list[str]:
    """Return many lines."""
    return [f"line {number}" for number in range(30_000)]


def odd() -> object:
    """Return what no JSON can hold."""
    found = []
    found.append(found)
    return found


def leaves() -> None:
    """End the process."""
    os._exit(7)


def star(*keys: str) -> str:
    """Take any number."""
'''
POINTS = """
[fanout.tools]
jira_lookup = acme_tools:jira_lookup
slow = acme_tools:slow
hungry = acme_tools:hungry
long = acme_tools:long
odd = acme_tools:odd
leaves = acme_tools:leaves
star = acme_tools:star
absent = acme_tools:no_such_function
broken = acme_broken:tool
read_file = acme_tools:long
"""
AGENT = "name: {name}\ndescription: Looks issues up.\ninstruction: Do it.\ntools: [{tools}]\n"
AGENTS = {
    "clerk": AGENT.format(name="clerk", tools="jira_lookup, slow, long, read_file, write_file"),
    "unlucky": AGENT.format(name="unlucky", tools="broken"),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of installed packages, of which one has tools."""
    folder = tmp_path_factory.mktemp("site-packages")
    (folder / "acme_tools.py").write_text(MODULE)
    (folder / "acme_broken.py").write_text("import sys\nsys.exit('no licence for the tool')\n")
    info = folder / "acme_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{folder}")
        yield folder


@pytest.fixture(scope="module")
def place(install_for_module: Installer, packages: Path) -> Installation:
    made = install_for_module.below("tools")(
        conversation("look", calls(call("jira_lookup", key="APP-7", order="desc")), REPORT),
        conversation("miss", calls(call("jira_lookup", key="APP-0")), REPORT),
        conversation("wrong", calls(call("jira_lookup", name="APP-1")), REPORT),
        conversation("long", calls(call("long")), REPORT),
        conversation("slow", calls(call("slow", folder=str(packages))), REPORT),
        conversation("broken", DONE),
        agents=AGENTS,
        PYTHONPATH=f"{REPOSITORY}{os.pathsep}{packages}",
        FANOUT_TOOLS='{"jira_lookup": {"env": ["JIRA_TOKEN"]}}',
        FANOUT_SECRETS__GIT_TOKEN="canary-git-token-1",
        JIRA_TOKEN=CANARY,
        OTHER_TOKEN="canary-other-token",
    )
    made.start_worker(forked=False)  # a fork knows the packages of what it was forked from
    return made


async def run(place: Installation, description: str, agent: str = "clerk") -> JobResult:
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec(description, agent=agent))
        return await client.wait(job_id, 120)


async def test_a_tool_is_called_in_a_process_without_the_workers_secrets(
    place: Installation,
) -> None:
    result = await run(place, "look")

    assert result.success, place.workers[0].tail()
    assert (
        '"key": "APP-7", "order": "desc", "environment": ["FANOUT_COMMAND", "JIRA_TOKEN"]'
        in result.summary
    )
    assert "this is not the answer" not in result.summary


async def test_an_exception_is_an_error_that_the_agent_reads_without_the_secret(
    place: Installation,
) -> None:
    result = await run(place, "miss")

    assert result.success, place.workers[0].tail()
    assert "jira_lookup failed: LookupError: there is no issue APP-0" in result.summary
    assert "[hidden]" in result.summary
    assert CANARY not in result.summary


async def test_wrong_arguments_are_named_with_the_right_ones(place: Installation) -> None:
    result = await run(place, "wrong")

    assert "key: Field required; name: Extra inputs are not permitted" in result.summary
    assert "It takes: key, fields, order" in result.summary


async def test_a_long_result_is_kept_in_a_file(place: Installation) -> None:
    result = await run(place, "long")

    assert "result_too_large" in result.summary
    assert "/large_tool_results/" in result.summary


async def test_cancelling_a_job_kills_the_process_and_what_it_started(
    place: Installation, packages: Path
) -> None:
    pids = packages / "pids"
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("slow", agent="clerk"))
        await eventually(pids.exists)
        await client.cancel(job_id)
        ended = await client.wait(job_id, 60)
        tool, child = pids.read_text().split()
        await eventually(lambda: not (is_alive(tool) or is_alive(child)))

    assert ended.state is JobState.CANCELLED


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_tool_that_cannot_be_imported_fails_the_job_and_not_the_worker(
    place: Installation,
) -> None:
    result = await run(place, "broken", "unlucky")
    after = await run(place, "look")

    assert result.error is not None
    assert result.error.message == (
        "The tool broken cannot be used: acme_broken:tool cannot be imported: "
        "SystemExit: no licence for the tool."
    )
    assert after.success


@pytest.mark.blocks_loop("the command line has its loop to itself")
async def test_doctor_names_each_tool_that_cannot_be_used(packages: Path) -> None:
    settings = load_settings(web={"hosts": "none"}, tools={"gone": {"env": ["NO_SUCH_TOKEN"]}})
    checks = [check async for check in tool_checks(settings, load_agent_definitions())]
    warned = {f"{check.name}: {check.found}" for check in checks if check.status == "warn"}
    fine = {f"{check.name}: {check.found}" for check in checks if check.status == "ok"}

    assert "web_search: researcher has none: FANOUT_WEB__HOSTS is none" in warned
    assert any("tool broken: " in one and "no licence for the tool" in one for one in warned)
    assert any(
        "tool read_file: " in one and "the name of a tool of fanout" in one for one in warned
    )
    assert "tool gone: it gets NO_SUCH_TOKEN, which is not set here" in warned
    assert "tool jira_lookup: acme_tools:jira_lookup" in fine


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "acme_tools:no_such_function cannot be imported"),
        ("star", "its parameter keys cannot be given by its name"),
        ("nowhere", "no installed package has an entry point nowhere"),
    ],
)
async def test_an_unusable_tool_is_one_sentence(packages: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        await PythonTools({}).make(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hungry", "MemoryError"),
        ("odd", "contains itself"),
        ("leaves", "ended without an answer (exit code 7)"),
        ("slow", "did not end within 2 s"),
    ],
)
async def test_a_tool_beyond_its_limits_is_an_error_of_the_call(
    packages: Path, tmp_path: Path, name: str, words: str
) -> None:
    tools = PythonTools({name: PythonToolSettings(timeout_seconds=2)})
    tool = await tools.make(name)
    args = {"folder": str(tmp_path)} if name == "slow" else {}
    result = await tool.run_async(args=args, tool_context=NO_CONTEXT)

    assert words in result["error"]
