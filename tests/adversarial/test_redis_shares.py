"""A Redis that fills up refuses new jobs in time, and nobody fills it alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from redis import exceptions
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fanout.orchestrator.configuration.storage_settings import StorageSettings
from fanout.orchestrator.extras.a2a.handler import protocol_error
from fanout.orchestrator.extras.mcp_server.server import sentence
from fanout.orchestrator.jobs.failures import (
    JobFailure,
    LedgerFull,
    LedgerUnavailable,
    LimitReached,
    ShareUsedUp,
)
from fanout.orchestrator.jobs.policy import (
    OWNER_PART,
    TENANT_PART,
    AdmissionPolicy,
    StorageShares,
    TenantShare,
)
from fanout.orchestrator.jobs.spec import JobSpec, TreeBounds
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import SUBMIT_BATCH, Claim, Ledger
from fanout.orchestrator.jobs.store.lua_scripts import script_source
from fanout.orchestrator.jobs.store.memory import redis_memory
from fanout.orchestrator.jobs.store.records import Stored
from fanout.orchestrator.jobs.store.redis_errors import redis_failure
from fanout.orchestrator.jobs.store.stored import owner_key
from fanout.orchestrator.server.problems import add_problems
from fanout.workers.upkeep.retention import Retention
from tests.adversarial.redis_servers import GuardedRedis, guarded_redis
from tests.builders import make_result, make_spec, make_worker

pytestmark = pytest.mark.redis

MAX_MEMORY = 48 * 1024**2
FILLER_BYTES = 40 * 1024**2
MANY = TreeBounds(max_children=100, max_tree_children=100)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    folder = tmp_path_factory.mktemp("redis")
    with guarded_redis(folder, "--maxmemory", str(MAX_MEMORY)) as made:
        yield made


@pytest.fixture
async def real_redis(guarded: GuardedRedis) -> AsyncIterator[Redis]:
    with guarded.admin() as admin:
        admin.flushall()
        admin.config_set("maxmemory", MAX_MEMORY)
    async with connect(guarded.url) as client:
        yield client


@pytest.fixture
def ledger(real_redis: Redis) -> Ledger:
    return Ledger(real_redis, Keys())


async def use(redis: Redis, part: float) -> None:
    """Let Redis use a part of its limit, which is set accordingly.

    What it uses goes up and down with its clients: most of it is something else.
    """
    if not await redis.exists("filler"):
        await redis.setrange("filler", FILLER_BYTES, "x")
    info: Any = await redis.info("memory")
    used = redis_memory(info).used_bytes
    await redis.config_set("maxmemory", int(used / part))
    await redis.hdel(Keys().prefix + ":dispatch:memory", "at")  # as if a second had passed


async def started(ledger: Ledger, spec: JobSpec, policy: AdmissionPolicy | None = None) -> Claim:
    """Let a worker run a job."""
    await ledger.register(make_worker(), 60, policy or AdmissionPolicy(), 1)
    await ledger.submit([spec])
    await ledger.dispatch(100)
    claim = await ledger.claim(spec.id, make_worker(), 60)
    assert isinstance(claim, Claim), claim
    return claim


async def ended(ledger: Ledger, spec: JobSpec, policy: AdmissionPolicy | None = None) -> None:
    """Let a worker end a job."""
    claim = await started(ledger, spec, policy)
    assert await ledger.finish(spec.id, claim.token, make_result(spec.id), {})


async def test_new_jobs_are_refused_from_one_mark_on_and_accepted_below_another(
    ledger: Ledger, real_redis: Redis
) -> None:
    parent = make_spec()
    claim = await started(ledger, parent)
    known = make_spec(idempotency_key="known")
    await ledger.submit([known])

    await use(real_redis, 0.92)
    with pytest.raises(
        LedgerFull, match=r"holds 9. % of its limit.*below 85 %: try again later, or"
    ):
        await ledger.submit([make_spec()])
    assert await ledger.submit([known]) == [known.id], "it is stored already"
    child = make_spec(parent_id=parent.id, root_id=parent.id, depth=1)
    with pytest.raises(LimitReached, match=r"not begun: Redis holds.*do the work yourself, or try"):
        await ledger.start(parent.id, claim.token, child, MANY)
    assert (await ledger.beat({parent.id: claim.token}, 60)) == {parent.id: "held"}

    await use(real_redis, 0.87)
    with pytest.raises(LedgerFull, match=r"Redis holds 8. % of its limit"):
        await ledger.submit([make_spec()])
    await use(real_redis, 0.8)
    assert len(await ledger.submit([make_spec()])) == 1
    await use(real_redis, 0.87)
    assert len(await ledger.submit([make_spec()])) == 1, "it was not full in between"


async def test_children_that_a_parked_job_cannot_have_are_refused_with_a_sentence(
    ledger: Ledger, real_redis: Redis
) -> None:
    parent = make_spec()
    claim = await started(ledger, parent)
    await use(real_redis, 0.92)
    child = make_spec(parent_id=parent.id, root_id=parent.id, depth=1)

    assert await ledger.park(parent.id, claim.token, [], [child], MANY) == "queued"

    events = await Journal(real_redis, Keys()).read(parent.id)
    (refused,) = [one.data for one in events if one.type is EventType.CHILD_FINISHED]
    assert refused["state"] == "refused"
    assert "Redis holds" in str(refused["reason"])


async def test_a_redis_without_a_limit_refuses_nothing(ledger: Ledger, real_redis: Redis) -> None:
    await real_redis.config_set("maxmemory", 0)

    assert len(await ledger.submit([make_spec(owner="ann")])) == 1
    assert not (await ledger.memory()).is_short
    assert (await ledger.memory()).machine_bytes > 0


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            AdmissionPolicy(storage=StorageShares(owner_jobs=2)),
            r"Owner ann of tenant t has 2 jobs stored, and may have 2 .*STORAGE__OWNER_JOBS\): wait",
        ),
        (
            AdmissionPolicy(storage=StorageShares(owner_bytes=6_000)),
            "Owner ann of tenant t has 0 MiB of jobs stored.*STORAGE__OWNER_BYTES",
        ),
        (
            AdmissionPolicy(storage=StorageShares(tenant_jobs=2)),
            "Tenant t has 2 jobs stored.*FANOUT_STORAGE__TENANT_JOBS",
        ),
        (
            AdmissionPolicy(tenants={"t": TenantShare(kept_jobs=2)}),
            "Tenant t has 2 jobs stored.*FANOUT_TENANTS",
        ),
        (
            AdmissionPolicy(tenants={"t": TenantShare(kept_bytes=6_000)}),
            "Tenant t has 0 MiB of jobs stored.*FANOUT_TENANTS",
        ),
    ],
)
async def test_an_owner_and_a_tenant_have_a_share_and_the_others_do_not_notice(
    ledger: Ledger, policy: AdmissionPolicy, says: str
) -> None:
    mine = {"owner": "ann", "tenant": "t", "description": "x" * 1_500}
    parent = make_spec(**mine)
    claim = await started(ledger, parent, policy)
    await ledger.submit([make_spec(**mine)])

    with pytest.raises(ShareUsedUp, match=says):
        await ledger.submit([make_spec(**mine)])
    child = make_spec(**mine, parent_id=parent.id, root_id=parent.id, depth=1)
    with pytest.raises(LimitReached, match=says.partition("): wait")[0][:20]):
        await ledger.start(parent.id, claim.token, child, MANY)
    others = [make_spec(owner="ben", tenant="u"), make_spec(owner="operator", tenant="t")]
    assert len(await ledger.submit([*others, make_spec(tenant="t")])) == 3

    await ledger.finish(parent.id, claim.token, make_result(parent.id), {})
    await ledger.forget(-60)
    assert len(await ledger.submit([make_spec(**mine)])) == 1


async def test_of_a_submission_that_takes_several_calls_all_jobs_are_stored_or_none(
    ledger: Ledger,
) -> None:
    most = 2 * SUBMIT_BATCH
    share = AdmissionPolicy(storage=StorageShares(owner_jobs=most))
    await ledger.register(make_worker(), 600, share, 1)
    specs = [make_spec(owner="ann", tenant="t", idempotency_key=str(n)) for n in range(most + 1)]

    with pytest.raises(ShareUsedUp, match=f"may have {most} "):
        await ledger.submit(specs)
    assert await ledger.count(live_only=False) == 0

    ids = await ledger.submit([*specs[:most], specs[0]])
    assert await ledger.count(live_only=False) == most
    assert await ledger.submit(specs[:most]) == ids[:most], "what is stored needs no room"


async def test_half_of_redis_is_the_most_that_one_tenant_has_by_default(
    ledger: Ledger, real_redis: Redis
) -> None:
    async def fill(owner: str) -> None:
        big = {"owner": owner, "tenant": "t", "context": "x" * 90_000}
        for _ in range(30):
            await ledger.submit([make_spec(**big) for _ in range(10)])

    with pytest.raises(ShareUsedUp, match="Owner ann of tenant t has 12 MiB"):
        await fill("ann")
    with pytest.raises(ShareUsedUp, match=r"OWNER_BYTES|TENANT_BYTES"):
        await fill("ben")
    with pytest.raises(ShareUsedUp, match=r"Tenant t has 24 MiB.*TENANT_BYTES"):
        await fill("cid")
    assert (await ledger.memory()).share < 0.8
    assert await ledger.submit([make_spec(owner="dan", tenant="u")])


async def test_what_is_stored_is_counted_and_what_is_deleted_is_not(ledger: Ledger) -> None:
    await ended(ledger, make_spec(owner="ann", tenant="t"))
    await ledger.submit([make_spec()])
    stored = await ledger.stored()

    assert {name: one.jobs for name, one in stored.items()} == {
        "all": 2,
        "tenant:t": 1,
        f"owner:{owner_key('t', 'ann')}": 1,
    }
    assert stored["all"].bytes > stored["tenant:t"].bytes > 1_800
    await ledger.recount()
    assert await ledger.stored() == stored, "a count that is right does not change"

    await ledger.forget(-60)
    left = await ledger.stored()
    assert (left["tenant:t"], left["all"].jobs) == (Stored(0, 0), 1)


async def test_what_an_earlier_release_stored_is_counted_by_retention(
    ledger: Ledger, real_redis: Redis
) -> None:
    jobs = [make_spec(owner="ann", tenant="t") for _ in range(3)]
    for spec in jobs:
        await ended(ledger, spec)
    before = await ledger.stored()
    for spec in jobs:
        await real_redis.hdel(Keys().job(spec.id), "bytes")
    await real_redis.delete(Keys().stored_jobs, Keys().stored_bytes)

    await ledger.recount()

    after = await ledger.stored()
    assert {name: one.jobs for name, one in after.items()} == {
        name: one.jobs for name, one in before.items()
    }
    assert after["tenant:t"].bytes > 3 * 1_500
    assert await ledger.forget(-60) == 3
    assert (await ledger.stored())["tenant:t"] == Stored(0, 0)


async def test_whole_trees_go_first_that_ended_first_and_none_that_is_needed(
    ledger: Ledger, real_redis: Redis
) -> None:
    mine = {"owner": "ann", "tenant": "t"}
    old, new, other = make_spec(**mine), make_spec(**mine), make_spec(owner="ben", tenant="u")
    working = make_spec(**mine)
    claim = await started(ledger, working)
    child = make_spec(**mine, parent_id=working.id, root_id=working.id, depth=1)
    await ledger.start(working.id, claim.token, child, MANY)
    await ledger.dispatch(10)
    done = await ledger.claim(child.id, make_worker(), 60)
    assert isinstance(done, Claim)
    await ledger.finish(child.id, done.token, make_result(child.id), {})
    uncollected = make_spec(**mine)
    for spec in (other, uncollected, old, new):
        await ended(ledger, spec)
    await real_redis.zadd(Keys().uncollected, {uncollected.id: 1})

    async def evict(jobs: int, min_kept_seconds: float = -60) -> int:
        return await ledger.evict(
            "tenant:t", jobs=jobs, bytes_=0, min_kept_seconds=min_kept_seconds
        )

    assert await evict(9, min_kept_seconds=3600) == 0, "they have just ended"
    assert await evict(1) == 1
    assert {one.id for one in await ledger.get_many([old.id, new.id])} == {new.id}
    assert await evict(9) == 1
    kept = [working.id, child.id, uncollected.id, other.id]
    assert [one.id for one in await ledger.get_many(kept)] == kept


async def test_early_retention_makes_room_of_a_tenant_before_its_jobs_are_refused(
    ledger: Ledger, real_redis: Redis
) -> None:
    share = StorageShares(tenant_jobs=10)
    for _ in range(10):
        spec = make_spec(owner="ann", tenant="t")
        await ended(ledger, spec, AdmissionPolicy(storage=share))
    with pytest.raises(ShareUsedUp):
        await ledger.submit([make_spec(owner="ann", tenant="t")])
    retention = retention_of(ledger, tenant_jobs=10)

    await real_redis.zadd(Keys().prefix + ":ended", dict.fromkeys(await ended_ids(real_redis), 1))
    await retention.make_room(await ledger.memory())

    assert (await ledger.stored())["tenant:t"].jobs == 8
    assert await ledger.submit([make_spec(owner="ann", tenant="t")])


async def test_a_tenant_has_an_age_of_its_own(ledger: Ledger, real_redis: Redis) -> None:
    short, usual, long = (make_spec(tenant=name) for name in ("short", "usual", "long"))
    for spec in (short, usual, long):
        await ended(ledger, spec)
    ages = {"short": 60, "long": 7200}

    async def left_after(seconds: int) -> set[str]:
        at = await ledger.now_ms() - 1000 * seconds
        await real_redis.zadd(
            Keys().prefix + ":ended", dict.fromkeys(await ended_ids(real_redis), at)
        )
        await ledger.forget(3600, ages)
        return {one.tenant for one in await ledger.get_many([short.id, usual.id, long.id])}

    assert await left_after(30) == {"short", "usual", "long"}
    assert await left_after(120) == {"usual", "long"}
    assert await left_after(4000) == {"long"}
    assert await left_after(8000) == set()


async def test_a_redis_that_fills_up_shortens_the_journals_of_ended_jobs_first(
    ledger: Ledger, real_redis: Redis
) -> None:
    journal = Journal(real_redis, Keys())
    spec, running = make_spec(), make_spec()
    claim = await started(ledger, spec)
    for _ in range(20):
        await journal.append(spec.id, 1, EventType.LOG, {"text": "x" * 1_000})
    await ledger.finish(spec.id, claim.token, make_result(spec.id), {})
    await started(ledger, running)
    for _ in range(20):
        await journal.append(running.id, 1, EventType.LOG, {"text": "x" * 1_000})
    before = await ledger.stored()
    retention = retention_of(ledger)

    await use(real_redis, 0.7)
    await retention.make_room(await ledger.memory())
    assert len(await journal.read(spec.id)) > 20, "there is room"
    await use(real_redis, 0.86)
    await retention.make_room(await ledger.memory())
    assert len(await journal.read(spec.id)) > 20, "it has just ended"
    await real_redis.zadd(Keys().prefix + ":ended", {spec.id: 1})
    await retention.make_room(await ledger.memory())

    (end,) = await journal.read(spec.id)
    assert end.ends_job
    assert (await ledger.result(spec.id)) is not None
    assert len(await journal.read(running.id)) > 20, "it has not ended"
    assert [one.id async for one in journal.follow(spec.id)] == [end.id]
    assert (await ledger.stored())["all"].bytes < before["all"].bytes - 15_000


async def test_a_worker_logs_once_that_little_memory_is_left_and_once_that_enough_is(
    ledger: Ledger, real_redis: Redis
) -> None:
    retention = retention_of(ledger)

    with capture_logs() as logs:
        for part in (0.5, 0.82, 0.83, 0.82, 0.92, 0.93, 0.5, 0.5):
            await use(real_redis, part)
            await retention.look()

    said = [(one["log_level"], one["event"][:19]) for one in logs]
    assert said == [
        ("warning", "Redis holds 82 % of"),
        ("warning", "Redis holds 92 % of"),
        ("info", "Redis has enough me"),
    ]


async def test_what_ends_a_job_and_makes_room_is_written_to_a_redis_that_is_full(
    ledger: Ledger, real_redis: Redis
) -> None:
    journal = Journal(real_redis, Keys())
    first, second = make_spec(), make_spec()
    claims = [await started(ledger, spec) for spec in (first, second)]
    await ended(ledger, make_spec())
    await use(real_redis, 1.1)

    with pytest.raises(LedgerFull):
        await journal.append(first.id, 1, EventType.LOG, {"text": "x"})
    with pytest.raises(LedgerFull):
        await ledger.submit([make_spec()])
    assert await ledger.finish(first.id, claims[0].token, make_result(first.id), {})
    assert await ledger.release(second.id, claims[1].token, "full", starves_seconds=1)
    assert await ledger.takes_turn("make_room", 1)
    assert await ledger.forget(-60) == 2


@pytest.mark.parametrize(
    ("failure", "status", "waits"),
    [
        (LedgerFull("Redis holds 92 % of its limit."), 503, "60"),
        (ShareUsedUp("Owner ann has 2 jobs stored."), 429, "60"),
        (LedgerUnavailable("Redis does not answer."), 503, "2"),
    ],
)
def test_over_http_a_refusal_says_when_to_try_again(
    failure: JobFailure, status: int, waits: str
) -> None:
    app = FastAPI()
    add_problems(app)

    @app.post("/jobs")
    async def submit(_: Request) -> None:
        raise failure

    answer = TestClient(app, raise_server_exceptions=False).post("/jobs")

    assert (answer.status_code, answer.headers["Retry-After"]) == (status, waits)
    assert answer.json()["detail"] == str(failure)
    assert answer.json()["type"] == f"urn:fanout:problem:{type(failure).__name__}"


@pytest.mark.parametrize("kind", [LedgerFull, ShareUsedUp])
def test_mcp_and_a2a_answer_with_the_sentence(kind: type[JobFailure]) -> None:
    failure = kind("Redis holds 92 % of its limit.")

    assert sentence(failure, "submit_job") == str(failure)
    assert str(failure) in str(protocol_error(failure))


def test_the_scripts_have_the_same_defaults_as_the_policy() -> None:
    (written,) = re.findall(r"local STORAGE = {(.*?)}", script_source("submit"), re.DOTALL)
    defaults = {name: float(value) for name, value in re.findall(r"(\w+) = ([\d.]+)", written)}

    parts = {"tenant_part": TENANT_PART, "owner_part": OWNER_PART}
    shares = StorageShares().model_dump(exclude_none=True, exclude={"warn_at"})
    assert defaults == shares | parts


def test_the_warning_says_how_much_is_used_and_what_to_do() -> None:
    info = {"maxmemory": 800 * 1024**2, "used_memory": 700 * 1024**2}
    memory = redis_memory(info | {"mem_not_counted_for_evict": 28 * 1024**2})

    assert memory.warning == (
        "Redis holds 84 % of its limit of 800 MiB, and refuses new jobs from 90 % on: raise its "
        "maxmemory, or keep jobs for a shorter time (FANOUT_RETENTION_SECONDS, "
        "FANOUT_STORAGE__MAX_BYTES)."
    )
    assert redis_memory(info | {"used_memory": 1}).warning == ""
    assert redis_memory({"used_memory": 10**9}).warning == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL",
            "busy with a script",
        ),
        ("NOREPLICAS Not enough good replicas to write.", "too few replicas"),
        ("MASTERDOWN Link with MASTER is down", "lost its primary"),
        ("ERR Error running script: @user_script:9: -OOM command not allowed when", "no memory"),
        ("ERR Error running script: @user_script:9: -MISCONF Redis is configured to", "its disk"),
        ("ERR Error running script: -READONLY You can't write against a", "read-only replica"),
        ("EXECABORT Transaction discarded because of: OOM command not allowed", "no memory left"),
    ],
)
def test_what_a_script_or_a_transaction_meets_has_its_own_sentence(text: str, says: str) -> None:
    failure = redis_failure(exceptions.ResponseError(text))

    assert says in str(failure)
    assert failure.retryable


def retention_of(ledger: Ledger, **storage: Any) -> Retention:
    """Return the retention of a worker that keeps jobs for a week."""
    unused: Any = None
    return Retention(ledger, unused, 7 * 24 * 3600, StorageSettings(**storage))


async def ended_ids(redis: Redis) -> list[str]:
    found: Any = await redis.zrange(Keys().prefix + ":ended", 0, -1)
    return list(found)
