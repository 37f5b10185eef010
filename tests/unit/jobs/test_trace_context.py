"""W3C trace contexts from outside, and the ids of a job's spans."""

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.trace_context import (
    attempt_span_id,
    find_trace_id,
    job_span_id,
    read_traceparent,
    usable_traceparent,
)
from tests.builders import make_spec

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (GOOD, "01"),
        (f"00-{TRACE}-{SPAN}-00", "00"),
        (f"00-{TRACE}-{SPAN}-03", "01"),
        (f"01-{TRACE}-{SPAN}-01", "01"),
        (f"cc-{TRACE}-{SPAN}-01-of-the-future", "01"),
    ],
)
def test_a_context_is_continued_and_its_sampling_is_kept(text: str, flags: str) -> None:
    assert usable_traceparent(text) == f"00-{TRACE}-{SPAN}-{flags}"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " ",
        GOOD + " ",
        GOOD + "\n",
        GOOD + "-more",
        GOOD.upper(),
        GOOD[:-1],
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}x-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{'٣' * 32}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-" + "x" * 10_000,
        f"01-{TRACE}-{SPAN}-01-\x1b[31m",
    ],
)
def test_what_is_no_context_is_ignored(text: str | None) -> None:
    assert read_traceparent(text) is None


def test_a_job_without_a_context_has_the_trace_of_its_tree() -> None:
    root = make_spec(id="a-job")
    child = make_spec(
        id="child", root_id="a-job", parent_id="a-job", depth=1, traceparent="nonsense"
    )

    assert find_trace_id(root) == find_trace_id(child) != find_trace_id(make_spec(id="another"))
    assert find_trace_id(make_spec(traceparent=GOOD)) == TRACE
    assert (
        read_traceparent(f"00-{find_trace_id(root)}-{job_span_id(TRACE, root.id)}-01") is not None
    )


def test_each_attempt_has_an_id_that_follows_from_when_it_began() -> None:
    first = attempt_span_id(TRACE, "job", 1_700_000_000.123)
    assert first == attempt_span_id(TRACE, "job", 1_700_000_000.123)
    assert first != attempt_span_id(TRACE, "job", 1_700_000_000.124)
    assert first != attempt_span_id(TRACE, "other", 1_700_000_000.123)
