"""`submit --file` of a graph, and real workers that run it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from tests.fixtures import place_fixture
from tests.integration.cli.conftest import Fanout
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

place = place_fixture(conversation("", shell("true"), DONE), workers=1)
FAILS = {"verify": "false", "max_reworks": 0}


def line(name: str, *after: str, **fields: Any) -> str:
    return json.dumps({"description": name, "name": name, "after": after, **fields}) + "\n"


async def test_a_diamond_runs_in_order_and_what_comes_after_a_failure_only_if_it_wants_to(
    place: Installation, client: JobClient
) -> None:
    text = (
        line("end", "left", "right") + line("begin") + line("left", "begin") + line("right", "begin")
        + line("broken", **FAILS) + line("skipped", "broken") + line("also skipped", "skipped").replace(
            '"name": "also skipped"', '"name": "also"')
        + line("cleanup", "skipped", on_failure="run")
    )  # fmt: skip

    ended = Fanout(place.folder, env=place.environment)(
        "submit", "--file", "-", "--wait", "--json", stdin=text
    )

    records = {one.name: one for one in await client.records(ended.json["job_ids"])}
    assert ended.code == 1, ended.err
    states = {name: one.state for name, one in records.items()}
    assert states == {
        **dict.fromkeys(("begin", "left", "right", "end", "cleanup"), JobState.SUCCEEDED),
        "broken": JobState.FAILED,
        **dict.fromkeys(("skipped", "also"), JobState.CANCELLED),
    }
    assert {records[name].error_type for name in ("skipped", "also")} == {"NotRun"}
    for name in ("left", "right"):
        assert records["begin"].finished_at <= records[name].started_at
        assert records[name].finished_at <= records["end"].started_at
