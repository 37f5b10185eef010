"""Whatever a job does, no record in Redis exceeds 256 KiB, and nothing of it is lost by that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.bounds import MAX_RECORD_BYTES, MAX_SPEC_BYTES, fit, json_bytes
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.stored import submission
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, call, calls, conversation, says, shell
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MIB = 1024 * 1024
WIDE = "\N{PILE OF POO}"  # one character, four bytes in UTF-8, twelve in JSON's ASCII
FILES = 40_000
MANY_FILES = (
    "python3 - <<'END'\n"
    f"for number in range({FILES}): open(f'file-{{number:05}}-' + 'n' * 60, 'w').close()\n"
    "END"
)
TODOS = [{"content": WIDE * 300 + f"{n:03}", "status": "pending"} for n in range(100)]
SCRIPT = (
    conversation("many files", shell(MANY_FILES), shell("sleep 1"), DONE),
    conversation(
        "talk",
        says(WIDE * 1000 + "x" * 400_000, calls=[call("execute", command="true")]),
        shell("head -c 9000000 /dev/zero | tr '\\0' '\\001'"),
        says("\x01" * 20_000 + "\n\n## Summary\n" + "\x01" * 10_000),
    ),
    conversation(
        "arguments",
        calls(call("write_file", file_path="/workspace/" + "p" * 5000, content=WIDE * 30_000)),
        calls(call("execute", command="true", **{f"a{n}": "x" * 3000 for n in range(300)})),
        calls(call("write_todos", todos=TODOS)),
        calls(*(call("execute", command=f"echo {n}") for n in range(120))),
        calls(*(call("execute", command=f"echo {n}") for n in range(1000))),
        DONE,
    ),
    conversation(
        "ask",
        calls(
            call("execute", command="echo " + WIDE * 25_000),
            call("execute", command="true", **{f"a{n}": "x" * 60 for n in range(3000)}),
            *(call("execute", command=f"echo {n} " + WIDE * 100) for n in range(100)),
        ),
        DONE,
    ),
    conversation("structured", says(json.dumps({"all": "x" * 300_000}))),
)


place = place_fixture(*SCRIPT, workers=1, FANOUT_WORKER__CHECKPOINT_SECONDS="2")


def _sizes(client: redis.Redis, key: str) -> Iterator[int]:
    """The sizes of the records under a key: a hash is one, a list's or a stream's entry is one.

    So is each payload of a job.
    """
    yield len(key)
    kind = client.type(key)
    if ":payloads:" in key:
        yield from (len(value) for _, value in client.hscan_iter(key))
    elif kind in {b"hash", b"string"}:
        yield client.memory_usage(key, samples=0)
    elif kind == b"stream":
        for _, fields in client.xrange(key):
            yield sum(len(name) + len(value) for name, value in fields.items())
    elif kind == b"list":
        yield from map(len, client.lrange(key, 0, -1))
    elif kind == b"set":
        yield from map(len, client.smembers(key))
    else:
        yield from (len(member) for member, _ in client.zscan_iter(key))


def largest(place: Installation) -> tuple[int, str]:
    with redis.Redis.from_url(place.redis.url) as client:
        keys = [key.decode() for key in client.scan_iter()]
        assert keys
        return max((size, key) for key in keys for size in _sizes(client, key))


async def run(client: JobClient, what: str, **fields: Any) -> Any:
    job_id = await client.submit(make_spec(what, **fields))
    return await client.wait(job_id, 120)


@pytest.mark.slow
async def test_no_job_makes_a_record_above_256_kib(place: Installation, client: JobClient) -> None:
    wide = {"context": "c" * (MAX_SPEC_BYTES - 2000), "labels": {"a": "b" * 1000}}

    many = await run(client, "many files", **wide)
    assert many.success, many.error
    async with client.changes(many.job_id) as bundle:
        listed = len(bundle.changes.files)
    assert 0 < len(many.files_modified) < listed, "the bundle lists more"
    assert many.files_count == listed

    for what in ("talk", "arguments"):
        result = await run(client, what, **wide)
        assert result.success, result.error

    refused = await run(client, "structured", output_schema={"type": "object"})
    assert refused.error.type == "AgentFailed"
    assert "more than 32,768" in refused.error.message

    job_id = await client.submit(make_spec("ask", interrupt_on={"execute": True}, **wide))
    await until_event(client, job_id, lambda event: event.data.get("state") == JobState.WAITING)
    sizes = [largest(place)]
    for _ in range(100):
        await client.send(job_id, WIDE * 20_000)
    sizes.append(largest(place))
    for number, approval in enumerate(await client.approvals()):
        await client.answer(approval.id, "reject", message=WIDE * 10_000 * (number == 0))
    sizes.append(largest(place))
    await client.wait(job_id, 60)

    sizes.append(largest(place))
    assert max(sizes)[0] <= MAX_RECORD_BYTES, sizes


@pytest.mark.parametrize(
    "fields",
    [
        {"context": "c" * MAX_SPEC_BYTES},
        {"description": WIDE * (MAX_SPEC_BYTES // 4)},
        {"labels": {f"l{n}": "x" * 100 for n in range(1000)}},
        {"output_schema": {"description": "x" * MAX_SPEC_BYTES}},
        {"idempotency_key": "k" * 2000},
    ],
    ids=["context", "description", "labels", "output_schema", "idempotency_key"],
)
def test_a_specification_that_is_too_large_is_refused_in_one_sentence(fields: Any) -> None:
    with pytest.raises(InvalidJob, match=r"KiB, not \d+: put long texts|at most 1,000") as told:
        submission(make_spec(**{"description": "d", **fields}))

    assert len(str(told.value)) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=200,
)


@given(JSON, st.integers(min_value=200, max_value=20_000))
@pytest.mark.slow
def test_everything_is_made_to_fit_and_what_fits_is_unchanged(value: Any, most: int) -> None:
    fitting = fit(value, most)

    assert json_bytes(fitting) <= most
    assert fitting == value or json_bytes(value) > most


def test_what_is_left_out_is_counted() -> None:
    fitting = fit({"files": list(range(40_000)), "text": "x" * MIB}, 4096)

    assert isinstance(fitting, dict)
    assert fitting["files"][-1] == "… (and 39,900 more)"
    assert str(fitting["text"]).endswith("more characters)")


def test_a_value_of_any_depth_fits() -> None:
    value: Any = "x" * 100_000
    for _ in range(5_000):
        value = [value]

    assert json_bytes(fit(value, 1000)) <= 1000
