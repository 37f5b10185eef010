"""`fanout run --script` and `fanout script`: bundled scripts on bundled projects, without a key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.cli.commands.script_arguments import SCRIPTS, bundled_scripts
from tests.integration.cli.conftest import Ended, Fanout, clean_environment
from tests.integration.cli.test_services import LOCAL

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

EXAMPLES = SCRIPTS.parent / "examples"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fanout]:
    """Services of their own for the tests of this module."""
    folder = tmp_path_factory.mktemp("scripts")
    made = Fanout(folder, clean_environment(folder) | LOCAL)
    yield made
    made("down", timeout=60)


def project(fanout: Fanout, example: str, name: str) -> Path:
    copy = fanout.folder / name
    shutil.copytree(EXAMPLES / example / "workspace", copy)
    return copy


def run(fanout: Fanout, name: str, folder: Path, *options: str, **inputs: Any) -> Ended:
    """Run a bundled script on a folder, with its scripted model."""
    replies = SCRIPTS / "replies" / f"{name.replace('-', '_')}.yaml"
    given = [f"--input={key}={value}" for key, value in inputs.items()]
    command = ("run", "--script", name, "--workspace", str(folder), "--yes", *options, *given)
    model = {"FANOUT_MODEL": f"scripted:{replies}"}
    return fanout(*command, env=model, timeout=200)


@pytest.mark.representative
@pytest.mark.slow
def test_a_review_has_each_finding_verified_by_a_second_agent(shared: Fanout):
    folder = project(shared, "bakery", "review")

    ended = run(shared, "review-changes", folder, files="bakery/*.py")
    tree = Fanout(folder, shared.env)("tree")

    assert ended.code == 0, ended.err
    found = ended.json
    assert (found["files"], found["not_reviewed"], found["not_verified"]) == (5, [], [])
    assert [one["line"] for one in found["confirmed"]] == [8, 11]
    assert [one["line"] for one in found["refuted"]] == [6]
    assert "■ Review" in ended.err
    assert "5 files to review" in ended.err
    assert "No file was changed." in ended.err
    assert "Review: 8 asked, 8 answered" in tree.out


@pytest.mark.slow
def test_modules_are_migrated_by_the_first_of_three_that_passes(shared: Fanout):
    folder = project(shared, "bakery", "migrate")

    ended = run(
        shared,
        "migrate-modules",
        folder,
        "--json",
        modules="bakery/*.py",
        goal="Add type hints",
        verify="python3 -m unittest tests.test_sale",
    )

    assert ended.code == 0, ended.err
    output = ended.json["output"]
    assert (len(output["migrated"]), output["failed"], output["passes_together"]) == (5, [], True)
    assert len(ended.json["landed"]) == 4
    assert "def shown(amount: int) -> str" in (folder / "bakery" / "prices.py").read_text()


@pytest.mark.slow
def test_ten_angles_become_one_report(shared: Fanout):
    folder = project(shared, "deep_research", "research")

    ended = run(shared, "research-angles", folder, question="Should the town buy electric buses?")

    assert ended.code == 0, ended.err
    assert (ended.json["angles"], ended.json["not_researched"]) == (10, [])
    assert (folder / "report.md").read_text().startswith("# Electric buses")


def test_the_bundled_scripts_have_no_faults_and_say_which_inputs_they_take(lonely_fanout: Fanout):
    listed = lonely_fanout("script", "ls", "--json").json["scripts"]
    checked = [lonely_fanout("script", "check", one["name"]) for one in listed]

    assert [one["name"] for one in listed] == [one.name for one in bundled_scripts()]
    assert all(one["inputs"] and one["about"] for one in listed)
    assert all(Path(one["replies"]).is_file() for one in listed)
    assert [one.code for one in checked] == [0] * len(listed), [one.err for one in checked]


def test_faults_of_a_script_are_told_with_their_lines_before_anything_is_started(
    lonely_fanout: Fanout,
):
    path = lonely_fanout.folder / "bad.py"
    path.write_text('x = await agnt("a")\nawait agent("b", agent="tster")\n')

    checked = lonely_fanout("script", "check", "bad.py")
    started = lonely_fanout("run", "--script", "bad.py")

    for ended in (checked, started):
        assert ended.code == 2
        assert "bad.py: line 1" in ended.err
        assert "`agnt`" in ended.err
        assert "bad.py: line 2" in ended.err
        assert "tster" in ended.err
    assert not (lonely_fanout.folder / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["x", "--script", "a.py"], "A run has a GOAL or a --script"),
        ([], "Describe what the run is to do"),
        (["x", "--input", "a=1"], "--input gives values to a script"),
        (["--script", "absent.py"], "There is no file 'absent.py'"),
        (["--script", "review-change"], "Did you mean review-changes?"),
        (["--script", "migrate-modules"], "needs the input modules (a pattern"),
        (["--script", "a.py", "--input", "1"], "it has the form NAME=VALUE"),
        (["--script", "a.py", "--input", "a=1", "--input", "a=2"], "is given twice"),
        (["--script", "a.py", "--input", "a=@gone"], "gone cannot be read"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_sentence(lonely_fanout: Fanout, arguments, told):
    (lonely_fanout.folder / "a.py").write_text('"x"\n')

    ended = lonely_fanout("run", *arguments)

    assert ended.code == 2
    assert told in ended.err


def test_a_script_runs_dry_with_replies_from_a_file(lonely_fanout: Fanout):
    source = lonely_fanout.folder / "dry.py"
    source.write_text('found = await agent("review a")\nassert found.summary == "fine"\n')
    replies = lonely_fanout.folder / "replies.yaml"

    replies.write_text('- {match: "review *", reply: fine}\n')
    good = lonely_fanout("script", "check", "dry.py", "--replies", "replies.yaml")
    replies.write_text('- {match: "review *", reply: bad}\n')
    bad = lonely_fanout("script", "check", "dry.py", "--replies", "replies.yaml", "--json")
    replies.write_text("- {matches: x}\n")
    wrong = lonely_fanout("script", "check", "dry.py", "--replies", "replies.yaml")

    assert (good.code, bad.code, wrong.code) == (0, 2, 2), (good.err, bad.err, wrong.err)
    assert "line 2: AssertionError" in json.dumps(bad.json["faults"])
    assert "reply 1 takes call, match and reply" in wrong.err
