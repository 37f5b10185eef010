"""`fanout submit --continue`, on a real Redis, without a worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanout.orchestrator.jobs.store.journal import EventType
from tests.integration.cli.conftest import Fanout, StandIn

pytestmark = pytest.mark.redis

SAID: dict[str, Any] = {
    "author": "agent",
    "content": {"role": "model", "parts": [{"text": "Tidy now."}]},
}


@pytest.fixture
async def ended(fanout: Fanout, stand_in: StandIn) -> str:
    """A job that has ended after its agent has said something."""
    job_id = fanout("submit", "Tidy the attic", "--agent", "researcher").out.strip()
    claim = await stand_in.claim(job_id)
    await stand_in.note(claim, EventType.MODEL_REPLY, {"event": SAID})
    await stand_in.finish(job_id, claim=claim)
    return job_id


def test_a_job_goes_on_with_another_whose_id_may_be_shortened(fanout: Fanout, ended: str) -> None:
    submitted = fanout("submit", "--continue", ended[:22], "now also the cellar")
    assert submitted.code == 0, submitted.err

    record = fanout("show", submitted.out.strip(), "--json").json
    assert (record["continues"], record["agent"]) == (ended, "researcher")
    assert record["description"] == "now also the cellar"
    lines = fanout("show", submitted.out.strip()).out.splitlines()
    assert ["continues", ended] in [line.split() for line in lines]


def test_lines_of_a_file_continue_jobs_too(fanout: Fanout, ended: str) -> None:
    lines = [{"description": "one", "continues": ended[:22]}, {"description": "two"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)

    ids = fanout("submit", "--file", "-", "--json", stdin=text).json["job_ids"]

    records = [fanout("show", job_id, "--json").json for job_id in ids]
    assert [record["continues"] for record in records] == [ended, None]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--continue", "nothing"], "There is no job nothing"),
        (["--continue", "{ended}", "--workspace", "."], "omit the workspace"),
        (["--continue", "{queued}"], "has not ended: wait for it or cancel it"),
    ],
)
def test_what_cannot_be_continued_is_said_in_words(
    fanout: Fanout, ended: str, arguments: list[str], words: str
) -> None:
    queued = fanout("submit", "Tidy the garden").out.strip()
    given = [argument.format(ended=ended, queued=queued) for argument in arguments]

    refused = fanout("submit", "now also the cellar", *given)

    assert (refused.code, refused.out) == (2, "")
    assert words in refused.err
    assert "Traceback" not in refused.err


def test_a_job_is_forked_at_its_last_event(fanout: Fanout, ended: str) -> None:
    last = json.loads(fanout("logs", ended, "--json").out.splitlines()[-1])["id"]

    forked = fanout("fork", ended[:22], "--at", last, "another way", "--model", "scripted:other")
    assert forked.code == 0, forked.err

    record = fanout("show", forked.out.strip(), "--json").json
    assert (record["continues"], record["at"]) == (ended, last)
    assert record["model"] == "scripted:other"
    refused = fanout("fork", ended, "--at", "1-1", "another way")
    assert refused.code == 2
    assert f"choose one of {last}" in refused.err
