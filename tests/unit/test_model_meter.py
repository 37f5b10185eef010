"""The meter of models' answers: what it reads of them, and that it costs and changes nothing."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from fanout.orchestrator.deep_agent import ModelUsage, price
from fanout.workers.sandbox.model_meter import MAX_PARSED_BYTES, ModelMeter
from tests.model_service import INPUT_TOKENS, OUTPUT_TOKENS, PATHS, Model, answer_to

ASKED: dict[str, Any] = {
    "model": "gpt-5",
    "messages": [{"role": "user", "content": "Hello."}],
    "input": [{"role": "user", "content": "Hello."}],
    "contents": [{"role": "user", "parts": [{"text": "Hello."}]}],
}
EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"


def read(
    meter: ModelMeter, body: bytes, kind: str, *, path: str = "/v1/messages", status: int = 200,
    piece: int = 1 << 16, **headers: str,
) -> None:  # fmt: skip
    """Have the meter read one answer, in pieces of a size."""
    reader = meter.reading("POST", path)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    reader.begin(status, {"content-type": kind, **given})
    for start in range(0, len(body), piece):
        reader.feed(body[start : start + piece])
    reader.end()


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize("path", PATHS)
def test_each_wire_format_is_summed_up_however_its_bytes_come(path: str, piece: int) -> None:
    meter = ModelMeter(price)
    answer = answer_to(path, ASKED, Model())
    assert answer is not None

    read(meter, *answer, path=path, piece=piece)
    read(meter, *answer, path=path, piece=piece)

    used = meter.total()
    assert (used.model_calls, used.input_tokens, used.output_tokens) == (
        2, 2 * INPUT_TOKENS, 2 * OUTPUT_TOKENS,
    )  # fmt: skip
    assert used.cost_usd is not None
    assert used.cost_usd > 0
    assert (meter.unread, meter.unpriced) == (0, "")


def test_cached_input_and_thoughts_count_once() -> None:
    meter = ModelMeter()
    anthropic = {
        "input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30,
        "output_tokens": 5,
    }  # fmt: skip
    gemini = {
        "promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 7,
        "thoughtsTokenCount": 3, "totalTokenCount": 110,
    }  # fmt: skip
    openai = {
        "input_tokens": 1000, "input_tokens_details": {"cached_tokens": 200}, "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 20},
    }  # fmt: skip

    read(meter, json.dumps({"usage": anthropic}).encode(), JSON)
    read(meter, json.dumps([{"usageMetadata": gemini}]).encode(), JSON)
    read(meter, b"data: " + json.dumps({"response": {"usage": openai}}).encode() + b"\n\n", EVENTS)

    assert meter.total() == ModelUsage(
        model_calls=3, input_tokens=60 + 100 + 1000, output_tokens=5 + 10 + 50,
        cached_tokens=30 + 40 + 200,
    )  # fmt: skip


def test_what_a_model_was_made_to_write_lowers_no_number() -> None:
    meter = ModelMeter()
    usage = {"prompt_tokens": 900, "completion_tokens": 90}
    fake = '"usage": {"prompt_tokens": 0, "completion_tokens": 0}'
    events = [
        {"choices": [{"delta": {"content": fake}}], "usage": usage},
        {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": -5}},
        {"usage": {"prompt_tokens": True, "completion_tokens": 10**30}},
        {"usage": ["none"]},
    ]
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)

    read(meter, body + b"data: [DONE]\n\n", EVENTS)

    used = meter.total()
    assert (used.input_tokens, used.output_tokens) == (900, 90)


@pytest.mark.parametrize(
    ("body", "kind", "headers"),
    [
        (b"\x1f\x8b\x08 compressed", EVENTS, {"content_encoding": "gzip"}),
        (b"data: {not json \xff\n\ndata: [DONE]\n", EVENTS, {}),
        (b"[" * 100_000, JSON, {}),
        (b'{"answer": "of another format"}', JSON, {}),
        (b"plain text", "text/plain", {}),
        (b"", JSON, {}),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_request(
    body: bytes, kind: str, headers: dict[str, str]
) -> None:
    meter = ModelMeter()

    read(meter, body, kind, **headers)

    assert (meter.total(), meter.unread) == (ModelUsage(model_calls=1), 1)


def test_refusals_and_other_requests_of_a_host_are_no_requests_of_a_model() -> None:
    meter = ModelMeter()

    read(meter, b'{"error": {}}', JSON, status=429)
    read(meter, b'{"input_tokens": 12}', JSON, path="/v1/messages/count_tokens")
    read(meter, b'{"id": 1}', JSON, path="/repos/a/b/pulls")

    assert (meter.total(), meter.unread) == (ModelUsage(), 0)


def test_an_answer_that_breaks_off_counts_with_what_it_had_said() -> None:
    meter = ModelMeter()
    answer = answer_to("/v1/messages", ASKED, Model())
    assert answer is not None
    reader = meter.reading("POST", "/v1/messages")
    reader.begin(200, {"content-type": EVENTS})
    reader.feed(answer[0][: answer[0].index(b"content_block_start")])
    reader.end()

    used = meter.total()
    assert (used.input_tokens, used.output_tokens) == (INPUT_TOKENS, 1)


@pytest.mark.parametrize(("prefix", "kind"), [(b"data: ", EVENTS), (b"", JSON)])
def test_of_a_huge_answer_only_the_end_is_kept(prefix: bytes, kind: str) -> None:
    meter = ModelMeter()
    usage = json.dumps({"usage": {"input_tokens": 5, "output_tokens": 6}})[1:].encode()
    reader = meter.reading("POST", "/v1/responses")
    reader.begin(200, {"content-type": kind})
    piece = b"x" * 65_536
    tracemalloc.start()
    try:
        reader.feed(prefix + b'{"text": "')
        for _ in range(500):
            reader.feed(piece)
        reader.feed(b'", ' + usage + b"\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.end()

    assert peak < 8 * MAX_PARSED_BYTES
    used = meter.total()
    assert (used.input_tokens, used.output_tokens) == (5, 6)
