"""What a script costs that is run again: with `--reuse`, or edited and continued.

It is counted at the model: by the requests that reach its service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.counting_model import CountingModel, counting_model
from tests.integration.cli.conftest import Ended, Fanout, clean_environment
from tests.integration.cli.test_services import LOCAL
from tests.integration.scripts import DONE, conversation, says, shell, write_script

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (
    conversation("^Summarise", says("## Summary\nIt has code.")),
    conversation("^Add a title", shell("echo title >> README.md"), DONE),
    conversation("^Check", says("## Summary\nIt is right.")),
)
SUMMARIES = """
import asyncio

async def main():
    paths = await files("*.py")
    found = await asyncio.gather(*[agent(f"Summarise {path}.", label=path) for path in paths])
    return {path: one.summary for path, one in zip(paths, found)}
"""
EDITED = """
phase("Write")
await agent("Add a title to README.md.")
phase("Check")
checked = await agent("Check {what}.")
[checked.summary, await read("README.md")]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingModel]:
    with counting_model(write_script(tmp_path_factory.mktemp("model"), *SCRIPT)) as made:
        yield made


@pytest.fixture(scope="module")
def fanout(tmp_path_factory: pytest.TempPathFactory, model: CountingModel) -> Iterator[Fanout]:
    folder = tmp_path_factory.mktemp("scripts")
    made = Fanout(folder, clean_environment(folder) | LOCAL | model.environment())
    yield made
    made("down", timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "README.md").write_text("")
    return tmp_path


def run(fanout: Fanout, project: Path, source: str, *options: str) -> Ended:
    script = fanout.folder / f"{project.name}.py"
    script.write_text(source)
    where = ("--workspace", str(project), "--yes", "--json", "--no-land")
    ended = fanout("run", "--script", str(script), *where, *options, timeout=200)
    assert ended.code == 0, ended.err
    return ended


def test_reuse_on_unchanged_files_asks_no_model_and_on_changed_ones_asks_again(
    fanout: Fanout, project: Path, model: CountingModel
) -> None:
    first = run(fanout, project, SUMMARIES)
    asked = len(model.asked)
    calls = fanout("tree", first.json["id"]).out
    anew = run(fanout, project, SUMMARIES)
    asked_anew = len(model.asked)
    again = run(fanout, project, SUMMARIES, "--reuse")
    asked_again = len(model.asked)
    tree = fanout("tree", again.json["id"])
    shown = json.loads(fanout("tree", again.json["id"], "--json").out)["scripts"]
    (project / "b.py").write_text("changed = True\n")
    changed = run(fanout, project, SUMMARIES, "--reuse")

    assert (asked, asked_anew, asked_again, len(model.asked)) == (3, 6, 6, 9)
    assert again.json["output"] == anew.json["output"] == first.json["output"]
    assert changed.json["output"] == first.json["output"]
    assert "a.py: Summarise a.py." in calls
    assert "label=" not in calls
    assert "3 asked, 3 answered, 3 reused" in tree.out
    (progress,) = shown.values()
    assert progress["end"]["reused"] == 3


def test_an_edited_script_that_is_continued_asks_for_its_last_phase_only(
    fanout: Fanout, project: Path, model: CountingModel
) -> None:
    first = run(fanout, project, EDITED.replace("{what}", "it"))
    before = len(model.asked)
    edited = run(fanout, project, EDITED.replace("{what}", "all"), "--continue", first.json["id"])

    asked = [conversation for conversation, _ in model.asked[before:]]
    assert len(asked) == 1
    assert "Check all." in asked[0]
    assert edited.json["output"] == ["It is right.", "title\n"]


def test_reuse_is_refused_without_a_script(fanout: Fanout) -> None:
    ended = fanout("run", "Do it", "--reuse")

    assert ended.code == 2
    assert "--reuse is for a script: name it with --script FILE." in ended.err
