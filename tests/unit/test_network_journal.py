"""What a job's journal has of its connections, with a journal that keeps what it is given."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.workers.attempt.opening import NetworkJournal, journaled_network
from fanout.workers.sandbox import ConnectionRecord, NetworkLimitReached
from tests.docker.conftest import make_sandbox_spec
from tests.waits import eventually


class Journal:
    def __init__(self, entries: list[JournalEvent] | None = None) -> None:
        self.earlier = entries or []
        self.noted: list[tuple[EventType, dict[str, Any]]] = []
        self.failure: Exception | None = None

    async def note(self, kind: EventType, data: dict[str, Any]) -> None:
        if self.failure:
            raise self.failure
        self.noted.append((kind, data))

    async def entries(self) -> list[JournalEvent]:
        return self.earlier

    def of(self, kind: EventType) -> list[dict[str, Any]]:
        return [data for noted, data in self.noted if noted is kind]


def connection(host: str = "a.example", **fields: Any) -> ConnectionRecord:
    values = {"port": 443, "is_allowed": True, "sent_bytes": 10, "received_bytes": 100}
    return ConnectionRecord(host=host, **{**values, **fields})


async def test_a_hundred_thousand_connections_to_other_hosts_make_a_small_journal() -> None:
    journal: Any = Journal()
    network = NetworkJournal(journal)

    async with network.running():
        for number in range(100_000):
            network.add(connection(f"host-{number}.example", is_allowed=number % 2 == 0))

    (summary,) = journal.of(EventType.NETWORK_SUMMARY)
    assert len(journal.of(EventType.NETWORK_CONNECTION)) == 100
    assert len(summary["hosts"]) == 51
    assert len(json.dumps(journal.noted)) < 64 * 1024
    counted = sum(host["connections"] + host["refused"] for host in summary["hosts"].values())
    assert counted == 100_000 - 100


async def test_earlier_attempts_count_against_the_budget() -> None:
    def entry(kind: EventType, data: dict[str, Any]) -> JournalEvent:
        return JournalEvent(id="1-1", at=1, job_id="j", attempt=1, type=kind, data=data)

    first: Any = Journal()
    network = NetworkJournal(first)
    async with network.running():
        for _ in range(150):
            network.add(connection())
    journal: Any = Journal(
        [entry(kind, data) for kind, data in first.noted] + [entry(EventType.LOG, {"text": "x"})]
    )
    limits = make_sandbox_spec().limits.model_copy(update={"network": ("a.example",)})

    async with journaled_network(journal, make_sandbox_spec(limits=limits)) as spec:
        assert spec.network_used_bytes == 150 * 110


async def test_a_job_without_a_network_adds_nothing() -> None:
    spec = make_sandbox_spec()

    journal: Any = Journal()

    async with journaled_network(journal, spec) as same:
        assert same is spec


async def test_the_budget_that_is_used_up_is_an_entry() -> None:
    journal: Any = Journal()
    network = NetworkJournal(journal)

    async with network.running():
        network.add(NetworkLimitReached(limit_bytes=1000, used_bytes=1010))

    assert journal.of(EventType.NETWORK_LIMIT) == [{"limit_bytes": 1000, "used_bytes": 1010}]


async def test_a_ledger_that_does_not_answer_does_not_keep_the_attempt() -> None:
    journal: Any = Journal()
    journal.failure = LedgerUnavailable("no answer")
    network = NetworkJournal(journal)

    async with network.running():
        network.add(connection())

    assert journal.noted == []


async def test_what_is_being_appended_at_the_end_is_appended_once() -> None:
    class Slow(Journal):
        async def note(self, kind: EventType, data: dict[str, Any]) -> None:
            await super().note(kind, data)
            await asyncio.sleep(0.05)  # it is stored, and the answer is on its way

    journal: Any = Slow()
    network = NetworkJournal(journal)

    async with network.running():
        network.add(connection())
        await eventually(lambda: journal.noted)

    assert len(journal.noted) == 1


async def test_a_reason_is_shortened() -> None:
    journal: Any = Journal()
    network = NetworkJournal(journal)

    async with network.running():
        network.add(connection(is_allowed=False, reason="x" * 1000))

    assert len(journal.of(EventType.NETWORK_CONNECTION)[0]["reason"]) == 300


@pytest.mark.parametrize("kind", [EventType.NETWORK_CONNECTION, EventType.NETWORK_SUMMARY])
async def test_an_entry_of_another_form_is_read_as_nothing(kind: EventType) -> None:
    odd = JournalEvent(id="1-1", at=1, job_id="j", attempt=1, type=kind, data={"hosts": [1]})
    limits = make_sandbox_spec().limits.model_copy(update={"network": ("a.example",)})
    journal: Any = Journal([odd])

    async with journaled_network(journal, make_sandbox_spec(limits=limits)) as spec:
        assert spec.network_used_bytes == 0
