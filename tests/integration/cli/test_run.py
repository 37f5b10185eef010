"""A run goes on without its terminal, is followed from others, and lands once.

Its services outlive the command, and end when nobody uses them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.embedded.child_process import ChildProcess
from fanout.orchestrator.embedded.liveness import living_workers
from tests.integration.cli.conftest import Child, Ended, Fanout, clean_environment, in_folders
from tests.integration.cli.test_embedded import within
from tests.integration.cli.test_services import LOCAL
from tests.integration.scripts import call, calls, conversation, says, shell, write_script

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation(
        "^slow",
        calls(*(call("start_task", description=f"makes {name}") for name in ("one", "two"))),
        calls(call("wait_tasks", job_ids=["{{started}}"])),
        says("## Summary\nBoth are made."),
    ),
    conversation(
        r"makes (\w+)",
        shell("sleep 3; echo {{1}} > {{1}}.txt"),
        shell("test -e {{1}}.txt || echo {{1}} > {{1}}.txt"),  # the first may be interrupted
        says("Made."),
    ),
    conversation("^quick", shell("echo new > new.txt"), says("## Summary\nQuickly done.")),
    conversation("^long", *[shell("sleep 600")] * 2, says("Done.")),  # the first may be interrupted
    conversation(
        "^grow",
        shell("echo one > list.txt"),
        says("## Summary\nBegun."),
        shell("echo two >> list.txt; cat list.txt"),
        says("## Summary\n{{last_result}}"),
    ),
    conversation(
        "^delegates",
        calls(call("task", description="fails", verify="test -e yes.txt")),
        says("It failed."),
    ),
    conversation(
        "^retries",
        calls(call("task", description="fails", verify="test -e yes.txt")),
        calls(call("task", description="fails and is done again")),
        says("It was done again."),
    ),
    conversation("^fails and is done again", says("Done.")),
    conversation("^fails", shell("echo no > no.txt"), *[says("I am done.")] * 3),
)


def with_services(folder: Path) -> Iterator[Fanout]:
    """The command line with services of its own, which end with it."""
    script = write_script(folder, *SCRIPT)
    model = {"FANOUT_MODEL": f"scripted:{script}"}
    made = Fanout(folder, clean_environment(folder) | LOCAL | model)
    yield made
    made("down", timeout=60)


@pytest.fixture(scope="module")
def shared_fanout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fanout]:
    """Services that all tests use which do not look at these."""
    yield from with_services(tmp_path_factory.mktemp("run"))


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Fanout]:
    """The same with services that only this test uses."""
    for made in with_services(tmp_path):
        yield in_folders(made)


def living(state: Path) -> list[ChildProcess]:
    """The workers that run."""
    return [*living_workers(StateFolder(state)).values()]


def started(fanout: Fanout, goal: str = "slow", folder: str = "a") -> tuple[Child, str]:
    """A run that works, and its id."""
    child = fanout.start("run", goal, "--workspace", folder, "--yes")
    assert child.stderr is not None
    for line in iter(child.stderr.readline, b""):
        if found := re.fullmatch(rb"Run (\w+)\n", line):
            assert within(60, lambda: "running" in fanout("ps").out)
            return child, found[1].decode()
    raise AssertionError("it did not start")


def ended(child: Child) -> Ended:
    out, err = child.communicate(timeout=60)
    return Ended(child.wait(60), out.decode(), err.decode())


def files(fanout: Fanout, folder: str = "a") -> list[str]:
    return sorted(path.name for path in (fanout.folder / folder).iterdir())


WHOLE = ["kept.txt", "one.txt", "two.txt"]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (signal.SIGKILL, signal.SIGHUP, signal.SIGTERM)
        ),
    ],
)
@pytest.mark.slow
def test_a_run_goes_on_without_its_terminal_and_is_landed_by_another(
    own: Fanout, number: signal.Signals
) -> None:
    child, run_id = started(own)

    child.send_signal(number)
    left = ended(child)

    if number is signal.SIGINT:
        assert left.code == 130
        assert f"To look again: fanout attach {run_id[-8:]}" in left.err
    assert files(own) == ["kept.txt"]
    attached = own("attach", run_id, timeout=60)
    assert (attached.code, attached.out) == (0, "Both are made.\n"), attached.err
    assert files(own) == WHOLE
    assert "2 files changed, +2 -0" in attached.err


@pytest.mark.representative
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "redis"])
def test_services_that_are_killed_under_a_run_come_back_by_themselves(
    apart: Fanout, victim: str
) -> None:
    child, _ = started(apart)
    state = Path(apart.env["FANOUT_STATE_DIR"])
    record = StateFolder(state).read_record()
    assert record is not None
    pid = record.worker_pid if victim == "worker" else record.redis_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    whole = ended(child)

    assert (whole.code, whole.out) == (0, "Both are made.\n"), whole.err
    assert "was killed; it is started again" in whole.err
    assert files(apart) == WHOLE


def test_the_end_of_a_run_says_whether_its_folder_passes(own: Fanout) -> None:
    fails = "echo FAILED t.py::test_a; echo 1 failed in 0.1s; exit 2"
    options = ("--workspace", "a", "--yes", "--verify-merges")
    red = own("run", "quick", *options, fails, timeout=60)
    (run_id,) = re.findall(r"^Run (\w+)$", red.err, re.MULTILINE)
    again = own("attach", run_id, "--json", timeout=60)
    green = own("run", "quick", *options, "test -e new.txt", "--json", timeout=60)

    assert (red.code, red.out) == (1, "Quickly done.\n"), red.err
    assert "WARNING: the files do not pass the verification (exit code 2): echo FAILED" in red.err
    assert "\n  t.py::test_a\n" in red.err
    assert "new.txt" in files(own)  # what it did is landed all the same
    assert (again.code, again.json["passes"]) == (1, False)
    assert again.json["status"] == "done, the verification fails"
    assert (green.code, green.json["passes"], green.json["status"]) == (0, True, "succeeded")


@pytest.mark.slow
def test_two_terminals_follow_one_run_and_it_lands_once(own: Fanout) -> None:
    child, run_id = started(own)
    others = [own.start("attach", run_id) for _ in range(2)]

    told = [ended(one) for one in (child, *others)]

    assert [(one.code, one.out) for one in told] == [(0, "Both are made.\n")] * 3, told
    assert files(own) == WHOLE


@pytest.mark.slow
def test_a_run_is_ended_by_a_cancel(own: Fanout) -> None:
    child, run_id = started(own)

    assert own("cancel", run_id).code == 0
    told = ended(child)

    assert (told.code, files(own)) == (1, ["kept.txt"])
    assert "Cancelled." in told.err


@pytest.mark.slow
def test_two_runs_in_two_folders_share_their_services(apart: Fanout) -> None:
    first, second = (apart.start("run", "slow", "--workspace", name, "--yes") for name in "ab")

    told = [ended(one) for one in (first, second)]

    assert [(one.code, one.out) for one in told] == [(0, "Both are made.\n")] * 2, told
    assert (files(apart), files(apart, "b")) == (WHOLE, WHOLE)


@pytest.mark.slow
def test_a_verified_run_that_fails_keeps_its_changes_and_lands_nothing(own: Fanout) -> None:
    options = ("--verify", "test -e yes.txt", "--max-reworks", "0", "--yes", "--workspace", "a")
    done = own("run", "fails", *options, timeout=60)

    assert (done.code, files(own)) == (1, ["kept.txt"])
    assert "VerificationFailed" not in done.err
    assert "  To see the output: fanout result " in done.err
    (command,) = re.findall(r"fanout (diff \w+) --stat", done.err)
    assert "no.txt" in own(*command.split()).out


def test_the_reason_of_a_failed_task_is_said(own: Fanout) -> None:
    done = own("run", "delegates", "--workspace", "a", "--yes", timeout=60)

    (line,) = re.findall(r"^✗ general-purpose \w+: (.*)$", done.err, re.MULTILINE)
    assert line.startswith("The answer did not pass")
    assert (done.code, done.out) == (1, "It failed.\n")
    assert "\nDone, 1 task failed:\n✗ general-purpose " in done.err


def test_a_task_that_is_done_again_or_checked_by_the_run_does_not_fail_it(own: Fanout) -> None:
    options = ("--workspace", "a", "--yes")
    again = own("run", "retries", *options, "--json", timeout=60)
    checked = own("run", "delegates", *options, "--verify", "true", timeout=60)

    assert (again.code, again.json["status"]) == (0, "succeeded"), again.err
    assert again.json["passes"] is None
    assert [one["done_again"] for one in again.json["failed_jobs"]] == [True]
    assert checked.code == 0, checked.err
    assert "tasks failed" not in checked.err


@pytest.mark.slow
def test_services_end_when_nobody_uses_them_and_not_before(apart: Fanout) -> None:
    idle = {"FANOUT_EMBEDDED_IDLE_SECONDS": "1"}
    child, run_id = started(Fanout(apart.folder, apart.env | idle))
    child.kill()
    ended(child)

    # The detached run is longer than the time without use.
    assert within(60, lambda: "succeeded" in apart("show", run_id).out)
    state = Path(apart.env["FANOUT_STATE_DIR"])
    assert within(60, lambda: not (living(state) or ChildProcess(state, "keeper").is_alive))

    assert apart("ps").code == 3
    again = apart("run", "quick", "--workspace", "b", "--yes", timeout=60)
    assert (again.code, again.out) == (0, "Quickly done.\n"), again.err
    assert apart("attach", run_id, timeout=60).code == 0  # its record outlived the services
    assert files(apart) == WHOLE


@pytest.mark.slow
def test_services_whose_folder_is_deleted_end_too(apart: Fanout) -> None:
    idle = {"FANOUT_EMBEDDED_IDLE_SECONDS": "4"}
    assert apart("run", "quick", "--workspace", "a", "--yes", env=idle, timeout=60).code == 0
    state = Path(apart.env["FANOUT_STATE_DIR"])
    pids = [process.pid for process in (*living(state), ChildProcess(state, "keeper"))]
    time.sleep(3)  # the keeper has looked

    while state.exists():  # they write into it until they see that it is gone
        shutil.rmtree(state, ignore_errors=True)

    assert within(60, lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.slow
def test_services_of_up_do_not_end_by_themselves(apart: Fanout) -> None:
    idle = {"FANOUT_EMBEDDED_IDLE_SECONDS": "1"}
    assert apart("run", "quick", "--workspace", "a", "--yes", env=idle, timeout=60).code == 0
    assert apart("up", "--no-serve", timeout=60).code == 0
    state = StateFolder(Path(apart.env["FANOUT_STATE_DIR"]))
    record = state.read_record()
    assert record is not None
    assert record.idle_seconds is None

    assert within(60, lambda: not ChildProcess(state.path, "keeper").is_alive)

    assert apart("ps").code == 0


@pytest.mark.slow
def test_a_run_continues_another_in_its_folder(own: Fanout) -> None:
    first = own("run", "grow", "--workspace", "a", "--yes", timeout=60)
    assert (first.code, first.out) == (0, "Begun.\n"), first.err
    (run_id,) = re.findall(r"^Run (\w+)$", first.err, re.MULTILINE)

    second = own("run", "now also two", "--continue", run_id[:20], "--yes", timeout=60)

    assert second.code == 0, second.err
    assert "one\\ntwo" in second.out  # it had the file
    assert (own.folder / "a" / "list.txt").read_text() == "one\ntwo\n"


def test_what_a_continued_run_did_not_land_lands_with_the_next(own: Fanout) -> None:
    first = own("run", "grow", "--workspace", "a", "--no-land", timeout=60)
    assert files(own) == ["kept.txt"]
    (run_id,) = re.findall(r"^Run (\w+)$", first.err, re.MULTILINE)

    assert own("run", "and two", "--continue", run_id, "--yes", timeout=60).code == 0

    assert (own.folder / "a" / "list.txt").read_text() == "one\ntwo\n"


def test_what_has_landed_and_was_taken_back_is_not_merged_again(own: Fanout) -> None:
    done = own("run", "quick", "--workspace", "a", "--yes", timeout=60)
    (run_id,) = re.findall(r"^Run (\w+)$", done.err, re.MULTILINE)
    (own.folder / "a" / "new.txt").unlink()

    again = own("attach", run_id, timeout=60)

    assert (again.code, files(own)) == (0, ["kept.txt"])
    assert "was merged into" in again.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "The goal is empty"),
        (("x", "--agent", "nobody"), "there is no agent 'nobody'"),
        (("x", "--max-reworks", "99"), "max_reworks: Input should be less than"),
        (("x", "--branch", "b", "--no-land"), "leave one of them out"),
    ],
)
def test_what_no_run_can_be_is_refused_before_anything_starts(
    lonely_fanout: Fanout, arguments: tuple[str, ...], said: str
) -> None:
    refused = lonely_fanout("run", *arguments, env=LOCAL)

    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert "Starting" not in refused.err
