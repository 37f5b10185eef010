"""What tasks changed lands as a train: verified together, and sent back where it breaks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_spec
from tests.fixtures import DOCKER_SLOWLY, place_fixture
from tests.integration.scripts import DONE, call, calls, conversation, says, shell
from tests.integration.worker.children import answers, children_of
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

TESTS = "python3 -m unittest -q test_all"
PROJECT = {
    "core.py": "def total(values):\n    return sum(values)\n",
    "app.py": "from core import total\n\n\ndef main():\n    return total([1, 2])\n",
    "colour.txt": "red\n",
    "test_all.py": """\
import importlib, pathlib, unittest

class All(unittest.TestCase):
    def test_modules(self):
        for path in pathlib.Path(".").glob("*.py"):
            if path.stem != "test_all":
                module = importlib.import_module(path.stem)
                getattr(module, "main", int)()

    def test_colour(self):
        self.assertNotIn("<", pathlib.Path("colour.txt").read_text())
""",
}
RENAME = shell("sed -i s/total/add_up/ core.py app.py")
USE_OLD = shell(
    "printf 'from core import total\\n\\n\\ndef main():\\n    total([3])\\n' > extra.py"
)
USE_NEW = shell("sed -i s/total/add_up/ extra.py")
TO_GREEN, TO_BLUE = (shell(f"echo {colour} > colour.txt") for colour in ("green", "blue"))
SEES_BOTH = shell(
    "grep -q '<<<<<<<' colour.txt && grep -q green colour.txt && echo teal > colour.txt"
)
ADDS = [f"adds part {number}" for number in range(1, 5)]
GREEN = [f"adds part {number}" for number in range(1, 9)]
MIXED = [*ADDS, "renames it", "uses it", "makes it green", "makes it blue"]
SAME = ["bad twin", "twin"]

SCRIPT = (
    *(
        conversation(f"^{name}", shell(f"echo 'X = {number}' > part_{number}.py"), DONE)
        for number, name in enumerate(GREEN, 1)
    ),
    conversation("^renames it", RENAME, DONE),
    conversation("^uses it", USE_OLD, says("It uses it."), USE_NEW, says("It uses the new name.")),
    conversation("^makes it green", TO_GREEN, DONE),
    conversation("^makes it blue", TO_BLUE, says("Blue."), SEES_BOTH, says("Teal is both.")),
    conversation("^never", USE_OLD, says("Used."), says("It is right."), says("Believe me.")),
    conversation("^all green", calls(call("tasks", tasks=[{"description": d} for d in GREEN])), DONE),
    conversation("^mixed", calls(call("tasks", tasks=[{"description": d} for d in MIXED])), DONE),
    conversation(
        "^hears why",
        calls(*(call("task", description=d) for d in ("makes it green", "makes it blue"))),
        shell("cat $HOME/conflicts/*/theirs/colour.txt $HOME/conflicts/*/yours/colour.txt; ls"),
        DONE,
    ),
    conversation(
        "^gives up",
        calls(*(call("task", description=d) for d in ("renames it", "never right"))),
        DONE,
    ),
    conversation(
        "^red pair",
        calls(call("tasks", tasks=[{"description": d} for d in (ADDS[0], "too much")])), DONE),
    conversation("^too much", shell("echo 'X = 2' > part_2.py"), DONE,
        shell("rm -f part_2.py"), says("Not needed.")),
    conversation(
        "^worse",
        calls(call("tasks", tasks=[{"description": d} for d in (ADDS[0], "bad one", ADDS[1])])),
        DONE),
    conversation("^bad one", shell("echo 'import gone' > bad.py"), DONE),
    conversation(
        "^edits after",
        calls(call("tasks", tasks=[{"description": d} for d in ADDS[:2]])),
        shell("rm part_1.py"),
        DONE),
    conversation(
        "^looks after",
        calls(call("tasks", tasks=[{"description": d} for d in ADDS[:2]])),
        calls(call("ls", path="/workspace")),
        DONE),
    conversation("^says only", DONE),
    conversation(
        "^moves and edits",
        calls(call("tasks", tasks=[{"description": d} for d in ("moves it", "edits it")])),
        DONE),
    conversation("^moves it", shell("mv core.py kernel.py; sed -i s/core/kernel/ app.py"), DONE),
    conversation("^edits it", shell("echo '# edited' >> core.py"), DONE),
    conversation("^same twice", calls(*(call("task", description=d) for d in SAME)), DONE),
    conversation("^twin", shell("echo 'Y = 1' > twin.py"), DONE),
    conversation("^bad twin", shell("echo 'Y = 1' > twin.py; echo 'import gone' > bad.py"),
        says("Done."), shell("rm -f bad.py"), says("Without it.")),
    conversation(
        "^starts",
        *(calls(call("start_task", description=name)) for name in ("renames it", "uses it")),
        calls(call("wait_tasks", task_ids=["{{started_1}}", "{{started_2}}"])),
        *[calls(call("check_task", task_id="{{started_1}}"))] * 2,
        calls(call("list_tasks")),
        DONE,
    ),
)  # fmt: skip

LEAD = f"""\
name: lead
description: Delegates.
instruction: Delegate.
subagents: [general-purpose]
verify_merges: {TESTS}
"""


place = place_fixture(
    *SCRIPT,
    scope="module",
    providers=DOCKER_SLOWLY,
    agents={"lead": LEAD},
    workers=1,
    concurrency=8,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in PROJECT.items():
        (folder / name).write_text(text)
    return folder


async def run(client: JobClient, project: Path, description: str, **fields: object) -> JobResult:
    spec = make_spec(description, agent="lead", **fields)
    job_id = await client.submit(spec, workspace=project)
    result = await client.wait(job_id, 120)
    assert result.success, result.error
    await client.merge(result, project)
    return result


async def of_kind(client: JobClient, job_id: str, kind: EventType) -> list[JournalEvent]:
    found = [event async for event in client.events(job_id, follow=False)]
    return [event for event in found if event.type is kind]


async def test_eight_green_tasks_cost_one_verification(client: JobClient, project: Path) -> None:
    result = await run(client, project, "all green")
    (told,) = await answers(client, result.job_id, "tasks")
    assert [one["status"] for one in told["results"]] == ["success"] * 8
    verified = await of_kind(client, result.job_id, EventType.VERIFY)
    assert [(event.data["exit_code"], len(event.data["children"])) for event in verified] == [
        (0, 8)
    ]
    assert all((project / f"part_{number}.py").exists() for number in range(1, 9))


@pytest.mark.representative
@pytest.mark.slow
async def test_an_edit_follows_a_file_that_another_task_moved_where_no_repository_shows_it(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "moves and edits")

    landed = await of_kind(client, result.job_id, EventType.CHILD_LANDED)
    assert [event.data["outcome"] for event in landed] == ["in", "in"]
    assert not (project / "core.py").exists()
    assert (project / "kernel.py").read_text() == PROJECT["core.py"] + "# edited\n"


async def test_what_breaks_or_conflicts_goes_back_to_its_own_agent(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "mixed")
    (told,) = await answers(client, result.job_id, "tasks")
    by_task = dict(zip(MIXED, told["results"], strict=True))
    assert [one["status"] for one in told["results"]] == ["success"] * 8, json.dumps(told, indent=1)
    assert [one["merge"]["applied"] for one in told["results"]] == [1] * 4 + [2, 1, 1, 1]
    assert by_task["uses it"]["summary"] == "It uses the new name."
    assert "exit code 1" in by_task["uses it"]["sent_back"]
    assert by_task["makes it blue"]["summary"] == "Teal is both."
    assert "colour.txt" in by_task["makes it blue"]["sent_back"]
    assert (project / "colour.txt").read_text() == "teal\n"
    assert "add_up([3])" in (project / "extra.py").read_text()
    assert "add_up" in (project / "app.py").read_text()
    assert all((project / f"part_{number}.py").exists() for number in range(1, 5))
    children = await children_of(client, result.job_id)
    assert len(children) == 10


async def test_what_stays_out_is_told_with_both_sides(client: JobClient, project: Path) -> None:
    result = await run(client, project, "hears why", max_reworks=0)
    green, blue = await answers(client, result.job_id)
    assert (green["status"], blue["status"]) == ("success", "error")
    assert "colour.txt" in blue["error"]
    (conflict,) = blue["merge"]["conflicts"]
    assert "+blue" in conflict["diff"]
    assert {"theirs", "yours"} <= conflict.keys()
    (seen,) = await answers(client, result.job_id, "execute")
    assert seen["output"].split()[:2] == ["blue", "green"]
    assert (project / "colour.txt").read_text() == "green\n"
    landed = await of_kind(client, result.job_id, EventType.CHILD_LANDED)
    assert {str(event.data["outcome"]) for event in landed} == {"in", "out"}


@pytest.mark.slow
async def test_a_task_is_sent_back_as_often_as_the_job_says(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "gives up")
    _, never = await answers(client, result.job_id)
    assert never["status"] == "error"
    assert never["verified"]["exit_code"] == 1
    assert "ImportError" in never["verified"]["output_tail"]
    assert not (project / "extra.py").exists()
    landed = await of_kind(client, result.job_id, EventType.CHILD_LANDED)
    assert sorted(str(event.data["outcome"]) for event in landed) == [
        *("in", "out", "sent back", "sent back"),
    ]


async def test_taking_out_one_of_two_equal_changes_leaves_the_other(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "same twice")
    first, second = await answers(client, result.job_id)
    assert (first["summary"], second["status"]) == ("Without it.", "success")
    assert (project / "twin.py").read_text() == "Y = 1\n"
    assert not (project / "bad.py").exists()


async def test_started_tasks_are_waited_for_until_their_reworks_have_ended(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "starts")
    (waited,) = await answers(client, result.job_id, "wait_tasks")
    assert waited["unfinished"] == []
    assert [one["status"] for one in waited["results"]] == ["success"] * 2
    assert waited["results"][1]["summary"] == "It uses the new name."
    assert [one["merge"]["applied"] for one in waited["results"]] == [2, 1]
    checked = await answers(client, result.job_id, "check_task")
    assert [one["merge"]["applied"] for one in checked] == [2] * 2
    (listed,) = await answers(client, result.job_id, "list_tasks")
    assert {one["task_id"] for one in listed["tasks"]} == {
        one["task_id"] for one in waited["results"]
    }
    assert "add_up([3])" in (project / "extra.py").read_text()


@pytest.mark.parametrize("seconds", [0, 0.02, 0.05, 1])
async def test_a_job_that_is_stopped_while_it_lands_keeps_nothing_unverified(
    client: JobClient, project: Path, seconds: float
) -> None:
    spec = make_spec("all green", agent="lead", verify_merges="sleep 60")
    job_id = await client.submit(spec, workspace=project)
    await until_event(client, job_id, EventType.LANDING)
    await asyncio.sleep(seconds)  # while it is put in; the last one: while it is verified
    await client.cancel(job_id)
    result = await client.wait(job_id, 60)
    assert result.state is JobState.CANCELLED
    assert result.files_modified == ()


FIRST_FAILS = "test -e $HOME/ran || { touch $HOME/ran; echo no luck; exit 1; }"


async def test_a_verification_with_two_answers_is_reported_and_not_believed(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "all green", verify_merges=FIRST_FAILS)
    (told,) = await answers(client, result.job_id, "tasks")
    assert [one["status"] for one in told["results"]] == ["success"] * 8
    assert "flaky" in told["results"][0]["merge"]["note"]
    assert all((project / f"part_{number}.py").exists() for number in range(1, 9))


async def test_a_verification_that_fails_whatever_is_in_blames_none(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "all green", verify_merges="exit 3")
    (told,) = await answers(client, result.job_id, "tasks")
    assert [one["status"] for one in told["results"]] == ["success"] * 8
    note = told["results"][0]["merge"]["note"]
    assert "failed before these changes too, and still fails (exit code 3)" in note
    assert "no change was blamed" in note
    verified = await of_kind(client, result.job_id, EventType.VERIFY)
    assert [(len(event.data["children"]), event.data["of"]) for event in verified][:3] == [
        (8, 8), (0, 8), (7, 8),
    ]  # fmt: skip
    assert len(verified) <= 10  # 2·log2 8 + 4


async def test_of_two_that_repair_the_files_only_alone_one_lands_and_the_other_goes_back(
    client: JobClient, project: Path
) -> None:
    only_one = "test $(ls part_1.py part_2.py gone.py 2>/dev/null | wc -l) = 1"
    result = await run(client, project, "red pair", verify_merges=only_one)
    (told,) = await answers(client, result.job_id, "tasks")
    first, second = told["results"]
    assert "passes with them" in first["merge"]["note"]
    assert second["sent_back"].startswith("part_2.py: this change breaks the verification")
    assert second["summary"] == "Not needed."
    assert (project / "part_1.py").exists()
    assert not (project / "part_2.py").exists()
    landed = await of_kind(client, result.job_id, EventType.CHILD_LANDED)
    assert [str(event.data["outcome"]) for event in landed][:2] == ["in", "sent back"]
    verified = await of_kind(client, result.job_id, EventType.VERIFY)
    of_the_first = [event for event in verified if event.data["of"] == 2]
    assert len(of_the_first) <= 6  # 2·log2 2 + 4


async def test_what_breaks_another_test_of_failing_files_goes_back_and_the_rest_lands(
    client: JobClient, project: Path
) -> None:
    with (project / "test_all.py").open("a") as tests:
        tests.write("    def test_never(self):\n        self.fail('not today')\n")
    result = await run(client, project, "worse", max_reworks=0)
    (told,) = await answers(client, result.job_id, "tasks")
    good, bad, other = told["results"]
    assert (good["status"], bad["status"], other["status"]) == ("success", "error", "success")
    assert "bad.py: this change breaks test_modules (test_all.All.test_modules)" in bad["error"]
    assert "in no test that passed before: test_never" in good["merge"]["note"]
    assert (project / "part_1.py").exists()
    assert (project / "part_2.py").exists()
    assert not (project / "bad.py").exists()


EDITS = (
    ("edits after", 1, [2, "at end"]),  # a verification of its own, because files have changed
    ("looks after", 0, [2]),
    ("says only", 1, ["at end"]),
)


@pytest.mark.parametrize(("description", "exit_code", "verified"), EDITS)
async def test_the_result_says_whether_the_files_pass_as_the_agent_leaves_them(
    client: JobClient,
    project: Path,
    description: str,
    exit_code: int,
    verified: list[int | str],
) -> None:
    result = await run(client, project, description, verify_merges="test -e part_1.py")
    assert result.verified is not None
    assert (result.verified.command, result.verified.exit_code) == ("test -e part_1.py", exit_code)
    events = await of_kind(client, result.job_id, EventType.VERIFY)
    assert [
        "at end" if event.data.get("at_end") else len(event.data["children"]) for event in events
    ] == verified


async def test_an_answer_verified_by_the_same_command_is_not_verified_twice(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "says only", verify="true", verify_merges="true")
    assert result.verified is not None
    assert len(await of_kind(client, result.job_id, EventType.VERIFY)) == 1


async def test_files_that_pass_one_verification_and_not_the_other_do_not_pass(
    client: JobClient, project: Path
) -> None:
    result = await run(client, project, "says only", verify="true", verify_merges="exit 4")
    assert result.verified is not None
    assert (result.verified.command, result.verified.exit_code) == ("exit 4", 4)
