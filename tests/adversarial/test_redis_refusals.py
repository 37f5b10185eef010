"""A Redis that refuses is told as what it is: one sentence, the right exit code, no repetition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import exceptions

from fanout.orchestrator.jobs.failures import (
    LedgerForbidden,
    LedgerFull,
    LedgerMisconfigured,
    LedgerUnavailable,
)
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Dispatched, Ledger
from fanout.orchestrator.jobs.store.outage import through_outage
from fanout.orchestrator.jobs.store.queue import CeleryQueue
from fanout.orchestrator.jobs.store.redis_errors import redis_failure
from tests.adversarial.redis_servers import GuardedRedis, guarded_redis
from tests.builders import make_spec
from tests.integration.cli.conftest import Fanout, clean_environment

pytestmark = pytest.mark.redis


class Refusal(NamedTuple):
    options: str
    login: str
    kind: type[LedgerUnavailable]
    says: str
    exit_code: int


ALICE = "--user default on nopass ~* &* +@all --user alice on >right"
REFUSALS = {
    "no password": Refusal("--requirepass right", "", LedgerForbidden, "needs a password", 4),
    "a wrong password": Refusal(
        "--requirepass right", ":wrong@", LedgerForbidden, "does not accept the user", 4
    ),
    "a command that is not allowed": Refusal(
        f"{ALICE} ~* &* +@all -evalsha -script", "alice:right@", LedgerForbidden, "ACL LOG", 4
    ),
    "a key that is not allowed": Refusal(
        f"{ALICE} ~other &* +@all", "alice:right@", LedgerForbidden, "ACL LOG", 4
    ),
    "a cluster": Refusal(
        "--cluster-enabled yes --cluster-port {bus}", "", LedgerMisconfigured, "is a cluster", 3
    ),
    "a replica": Refusal(
        "--replicaof 127.0.0.1 1", "", LedgerUnavailable, "is a read-only replica", 3
    ),
    "no memory left": Refusal("--maxmemory 1", "", LedgerFull, "no memory left", 3),
}


@pytest.fixture(params=REFUSALS)
def refusal(request: pytest.FixtureRequest) -> Refusal:
    return REFUSALS[request.param]


@pytest.fixture
def guarded(refusal: Refusal, tmp_path: Path) -> Iterator[GuardedRedis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    login = f"redis://{refusal.login}127.0.0.1:{{port}}/0"
    admin = {"password": "right"} if "--requirepass" in refusal.options else {}
    with guarded_redis(folder, *refusal.options.split(), url=login, **admin) as made:
        yield made


@pytest.mark.slow
async def test_the_ledger_and_the_queue_say_what_it_is(
    refusal: Refusal, guarded: GuardedRedis
) -> None:
    async with connect(guarded.url) as client:
        with pytest.raises(refusal.kind, match=refusal.says) as told:
            await Ledger(client, Keys()).submit([make_spec()])
    assert type(told.value) is refusal.kind
    assert "right" not in str(told.value).split()

    if refusal.says == "ACL LOG" and "~*" in refusal.options.partition("alice")[2]:
        return  # the queue needs no scripts
    queue = CeleryQueue(guarded.url, "fanout", "fanout")
    with pytest.raises(refusal.kind, match=refusal.says):
        await queue.send([Dispatched(make_spec(), 1)])
    await queue.close()


def test_the_command_line_says_it_in_one_sentence_with_its_exit_code(
    refusal: Refusal, guarded: GuardedRedis, tmp_path: Path
) -> None:
    ended = Fanout(tmp_path, clean_environment(tmp_path) | {"FANOUT_REDIS_URL": guarded.url})(
        "submit", "x"
    )

    assert (ended.code, ended.out) == (refusal.exit_code, ""), ended.err
    assert refusal.says in ended.err
    assert ended.err.count("\n") == 1


async def test_what_would_be_refused_again_is_asked_once() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise LedgerForbidden("no")

    with pytest.raises(LedgerForbidden):
        await through_outage(ask)

    assert asked == 1


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (exceptions.BusyLoadingError("Redis is loading"), LedgerUnavailable, "still loading"),
        (exceptions.ResponseError("MISCONF Redis is"), LedgerUnavailable, "write to its disk"),
        (exceptions.MovedError("1 h:1"), LedgerMisconfigured, "is a cluster"),
        (exceptions.ResponseError("ERR unknown command"), LedgerUnavailable, "rejected a command"),
        (ConnectionRefusedError(), LedgerUnavailable, "does not answer"),
    ],
)
def test_each_error_has_its_sentence(
    error: Exception, kind: type[LedgerUnavailable], says: str
) -> None:
    failure = redis_failure(error)

    assert type(failure) is kind
    assert says in str(failure)
