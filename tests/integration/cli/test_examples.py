"""The bundled teams, each by its one command, with the scripted model on real services."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli.conftest import Ended, Fanout
from tests.integration.cli.test_demo import temporary
from tests.integration.cli.test_services import LOCAL

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def run(fanout: Fanout, name: str) -> tuple[Ended, Path]:
    """The example's end, and the folder that it worked on."""
    ended = fanout(
        "example", name, "--workspace", "here", "--json", env=temporary(fanout), timeout=100
    )
    assert ended.code == 0, ended.err
    assert ended.json["success"], ended.err
    return ended, fanout.folder / "here"


@pytest.mark.slow
def test_quickstart_keeps_to_the_memory_of_its_folder(lonely_fanout: Fanout):
    ended, folder = run(lonely_fanout, "quickstart")

    assert ended.json["files"] == ["INDEX.md"]
    assert ended.json["jobs"] == []
    assert (folder / "INDEX.md").read_text().startswith("- bread.txt: a recipe")
    assert list((lonely_fanout.folder / "tmp").iterdir()) == []


@pytest.mark.slow
def test_the_content_builder_researches_then_writes_by_skills_and_style_guide(
    lonely_fanout: Fanout,
):
    ended, folder = run(lonely_fanout, "content-builder")

    assert [(job["agent"], job["state"]) for job in ended.json["jobs"]] == [
        ("researcher", "succeeded"),
        ("writer", "succeeded"),
        ("writer", "succeeded"),
    ]
    assert ended.json["files"] == [
        "posts/library-of-things.md",
        "research/brief.md",
        "social/mastodon.txt",
        "social/noticeboard.txt",
    ]
    post = (folder / "posts" / "library-of-things.md").read_text()
    assert "exciting" not in post  # what the skill's script found has been mended
    assert 150 <= len(post.split()) <= 400
    assert "/skills/blog-post/SKILL.md" in ended.err


@pytest.mark.slow
def test_deep_research_sends_out_five_researchers_at_once_and_makes_one_report(
    lonely_fanout: Fanout,
):
    ended, folder = run(lonely_fanout, "deep-research")

    assert [(job["agent"], job["state"]) for job in ended.json["jobs"]] == [
        ("researcher", "succeeded")
    ] * 5
    assert ended.json["most_at_once"] == 5
    findings = sorted(path.name for path in (folder / "findings").iterdir())
    assert findings == ["charging.md", "experience.md", "money.md", "range.md", "running-costs.md"]
    assert (
        "519000 261600 257400" in (folder / "findings" / "money.md").read_text()
    )  # calculated in its sandbox
    report = (folder / "report.md").read_text()
    assert "257,400" in report
    assert "## Where findings disagree" in report


@pytest.mark.slow
def test_the_bakery_reports_its_check_and_its_files(lonely_fanout: Fanout):
    ended, _ = run(lonely_fanout, "bakery")

    assert (ended.json["tests_before"], ended.json["tests_after"]) == ("failed", "passed")
    assert len(ended.json["jobs"]) == 7  # six, and the rework of one of them
    assert "bakery/prices.py" in ended.json["files"]


def test_the_examples_are_listed_and_an_unknown_one_is_told_in_words(lonely_fanout: Fanout):
    listed = lonely_fanout("example", "--json").json["examples"]
    unknown = lonely_fanout("example", "poetry")
    (lonely_fanout.folder / "full").mkdir()
    (lonely_fanout.folder / "full" / "mine.txt").write_text("mine")
    full = lonely_fanout("example", "deep_research", "--workspace", "full", env=LOCAL)

    names = [one["name"] for one in listed]
    assert names == ["bakery", "content-builder", "deep-research", "quickstart"]
    assert all((Path(one["folder"]) / "README.md").is_file() for one in listed)
    assert unknown.code == 2
    assert "There are: bakery, content-builder, deep-research, quickstart." in unknown.err
    assert full.code == 2
    assert "is not empty" in full.err


@pytest.mark.slow
def test_a_real_model_without_a_key_is_told_in_words(lonely_fanout: Fanout):
    ended = lonely_fanout(
        "example",
        "quickstart",
        "--model",
        "gemini-2.5-flash",
        env=temporary(lonely_fanout),
        timeout=100,
    )

    assert ended.code == 2
    assert "GOOGLE_API_KEY" in ended.err
