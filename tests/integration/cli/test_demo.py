"""`demo` and `run` from end to end, with the scripted model and without Docker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fanout.orchestrator.cli.commands.bundled_examples import DEMO, find_example
from tests.integration.cli.conftest import Fanout
from tests.integration.cli.test_embedded import within
from tests.integration.cli.test_services import LOCAL

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def temporary(fanout: Fanout) -> dict[str, str]:
    folder = fanout.folder / "tmp"
    folder.mkdir(exist_ok=True)
    return LOCAL | {"TMPDIR": str(folder)}


@pytest.mark.slow
def test_the_demo_turns_red_tests_green_and_leaves_nothing(lonely_fanout: Fanout):
    ended = lonely_fanout("demo", "--json", env=temporary(lonely_fanout), timeout=100)

    assert ended.code == 0, ended.err
    assert (ended.json["tests_before"], ended.json["tests_after"]) == ("failed", "passed")
    assert ended.json["jobs"] == 7  # six, and the rework of one of them
    assert "That isolates nothing" in ended.err
    assert "checking 6 of 6 changes together: fails" in ended.err
    assert "; returned to its agent" in ended.err
    assert 'Traceback (most recent call last):\n  File "/work' not in ended.err
    assert list((lonely_fanout.folder / "tmp").glob("fanout-demo-*")) == []


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_costs_the_demo_nothing(lonely_fanout: Fanout):
    ended = lonely_fanout("demo", "--chaos", "--json", env=temporary(lonely_fanout), timeout=250)

    assert ended.code == 0, ended.err
    assert "kill -9 of the worker" in ended.err
    assert (ended.json["tests_after"], ended.json["jobs"]) == ("passed", 7)


@pytest.mark.slow
def test_run_starts_its_own_services_and_changes_the_workspace(lonely_fanout: Fanout):
    bakery = find_example(DEMO)
    bakery.copy_workspace(lonely_fanout.folder / "project")
    env = temporary(lonely_fanout) | {"FANOUT_MODEL": bakery.scripted_model}

    given = ("--workspace", "project", "--verify-merges", str(bakery.verify_merges))
    ended = lonely_fanout("run", bakery.goal, *given, env=env, timeout=100)

    assert ended.code == 0, ended.err
    assert "Five faults are fixed" in ended.out
    suite = subprocess.run(
        [sys.executable, "-m", "unittest"],
        cwd=lonely_fanout.folder / "project",
        check=False,
        capture_output=True,
    )
    assert suite.returncode == 0
    assert "5 files changed, +9 -8" in ended.err
    (run_id,) = re.findall(r"^Run (\w+)$", ended.err, re.MULTILINE)
    assert "5 files changed" in lonely_fanout("diff", run_id, "--stat").out  # they go on
    again = lonely_fanout("attach", run_id)
    assert (again.code, "Five faults are fixed" in again.out) == (0, True)
    assert lonely_fanout("down").code == 0


@pytest.mark.slow
def test_a_run_without_a_usable_model_says_what_is_missing(lonely_fanout: Fanout):
    ended = lonely_fanout(
        "run", "x", "--model", "gemini-2.5-flash", env=temporary(lonely_fanout), timeout=100
    )

    assert (ended.code, ended.out) == (2, "")
    assert "GOOGLE_API_KEY" in ended.err
    assert ended.err.rstrip().endswith("fanout init")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(lonely_fanout: Fanout, number: signal.Signals):
    marker = temporary(lonely_fanout)["TMPDIR"]
    child = subprocess.Popen(
        Fanout.argv("demo"),
        cwd=lonely_fanout.folder,
        env=lonely_fanout.env | temporary(lonely_fanout),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert within(
            75, lambda: list(Path(marker).glob("fanout-demo-*/state/sandboxes/jobs/*"))
        ), "no job runs"
        started = descendants(child.pid)
        assert any("workers" in line for line in started.values())

        child.send_signal(number)
        child.communicate(timeout=60)
    finally:
        child.kill()

    assert within(60, lambda: not started.items() & command_lines().items())
    assert not started.items() & command_lines().items()  # says which are left


def descendants(pid: int) -> dict[int, str]:
    """The command lines of the processes that a process has started, by their ids.

    A process of ours hides its environment, so that it cannot be found by a variable.
    """
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
    found = {pid}
    for _generation in range(10):
        found |= {child for child, parent in parents.items() if parent in found}
    return {child: line for child, line in command_lines().items() if child in found - {pid}}


def command_lines() -> dict[int, str]:
    """The command lines of all processes, by their ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if line:
                found[int(folder.name)] = line
    return found
