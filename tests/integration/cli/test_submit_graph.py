"""`submit` of jobs that run after others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanout.orchestrator.jobs.state import JobState
from tests.integration.cli.conftest import Fanout, StandIn

pytestmark = pytest.mark.redis

DIAMOND = (
    {"name": "ship", "after": ["docs", "code"]},
    {"name": "plan"},
    {"name": "docs", "after": ["plan"]},
    {"name": "code", "after": ["plan"]},
    {"name": "tell", "after": ["ship"], "on_failure": "run"},
)


def lines_of(*jobs: dict[str, Any]) -> str:
    return "".join(json.dumps({"description": job.get("name", "x"), **job}) + "\n" for job in jobs)


async def test_a_diamond_says_what_each_job_waits_for_and_why_it_was_not_run(
    fanout: Fanout, stand_in: StandIn
) -> None:
    ids = fanout("submit", "--file", "-", "--json", stdin=lines_of(*DIAMOND)).json["job_ids"]
    ship, plan, docs, code, tell = ids

    assert "waits for the end of 2 jobs: docs, code" in fanout("ps").out
    assert "the end of 1 job: plan" in fanout("show", docs).out
    shown = fanout("show", ship, "--json").json
    assert (shown["name"], shown["after"], shown["root_id"]) == ("ship", [docs, code], ship)
    for job_id, state in ((plan, JobState.SUCCEEDED), (docs, JobState.FAILED)):
        await stand_in.finish(job_id, state)

    listed = {one["id"]: one for one in fanout("tree", ship, "--json").json["jobs"]}
    assert listed[ship]["error_type"] == "NotRun"
    assert f"Not run: job docs ({docs[-8:]}) failed" in fanout("tree", ship).out
    assert listed[code]["state"] == "queued"
    await stand_in.finish(tell)


async def test_an_id_in_after_may_be_short_and_an_option_holds_for_a_single_job(
    fanout: Fanout, stand_in: StandIn
) -> None:
    first = fanout("submit", "first", "--json").json["job_ids"][0]
    line = lines_of({"after": [first[-8:]]})

    [second] = fanout("submit", "--file", "-", "--json", stdin=line).json["job_ids"]
    third = fanout(
        "submit", "third", "--after", second, "--after", first[:20], "--on-failure", "run", "--json"
    ).json["job_ids"][0]

    assert fanout("show", second, "--json").json["after"] == [first]
    shown = fanout("show", third, "--json").json
    assert (shown["after"], shown["on_failure"]) == ([second, first], "run")
    await stand_in.finish(first, JobState.FAILED)
    await stand_in.finish(third)
    again = fanout("retry", second, "--json").json["id"]
    await stand_in.finish(again)  # a repeated job waits for none


@pytest.mark.parametrize(
    ("jobs", "line", "words"),
    [
        ([{"name": "a"}, {"name": "b", "after": ["c"]}], 2, "after: there is no job c"),
        ([{"name": "a"}, {}, {"name": "a"}], 3, "the name a is already used"),
        ([{}, {"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}], 2, "a → b → a"),
        ([{"name": "two words"}], 1, "name: "),
        ([{"on_failure": "perhaps"}], 1, "'skip' or 'run'"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_line_and_nothing_is_submitted(
    fanout: Fanout, jobs: list[dict[str, Any]], line: int, words: str
) -> None:
    ended = fanout("submit", "--file", "-", stdin=lines_of(*jobs))

    assert (ended.code, ended.out) == (2, "")
    assert f"stdin:{line}: " in ended.err
    assert words in ended.err
    assert "Nothing was submitted." in ended.err
    assert fanout("ps", "--all", "--json").json == {"jobs": []}
