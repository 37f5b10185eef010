"""A job whose model no worker can ask is refused when it is submitted, at whatever door."""

from __future__ import annotations

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import AgentDefinitions
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from tests.builders import make_spec, make_worker
from tests.integration.jobs.conftest import Hand

pytestmark = pytest.mark.redis

NO_KEY = {"openai": "needs OPENAI_API_KEY in the environment."}
NO_GROQ = {"groq": "needs GROQ_API_KEY in the environment."}
OTHER_DEFINITIONS = {"general-purpose": "another fingerprint"}


def lacking(name: str = "w1", **fields: object) -> WorkerInfo:
    return make_worker(name, **{"model_faults": NO_KEY, "model": "gpt-5", **fields})


async def submitted(client: JobClient, hand: Hand, workers: list[WorkerInfo], model: str) -> str:
    for worker in workers:
        await hand.ledger.register(worker, 600)
    return await client.submit(make_spec(model=model or None))


@pytest.mark.parametrize(
    ("workers", "model", "said"),
    [
        ([lacking()], "gpt-5", "gpt-5 needs OPENAI_API_KEY in the environment."),
        ([lacking(), lacking("w2")], "gpt-5", "gpt-5 needs OPENAI_API_KEY in the environment."),
        ([lacking()], "chat/x,gpt-5", "gpt-5 needs OPENAI_API_KEY in the environment."),
        ([lacking(model_faults=NO_GROQ)], "groq/x", "groq/x needs GROQ_API_KEY"),
    ],
)
async def test_a_model_that_no_worker_can_ask_is_refused_and_nothing_is_stored(
    client: JobClient, hand: Hand, workers: list[WorkerInfo], model: str, said: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        await submitted(client, hand, workers, model)

    assert str(refused.value).startswith(f"No worker can ask this job's model: {said}")
    assert await client.list() == []


@pytest.mark.parametrize(
    ("workers", "model"),
    [
        ([], "gpt-5"),
        ([lacking(), make_worker("older")], "gpt-5"),
        ([lacking(), lacking("able", model_faults={})], "gpt-5"),
        ([lacking()], "claude-x"),
        ([lacking()], "scripted:/nowhere.yaml"),
        ([lacking(draining=True)], "gpt-5"),
        ([lacking(agents=("another",))], "gpt-5"),
        ([lacking(definitions=OTHER_DEFINITIONS)], ""),
    ],
    ids=[
        "no worker is known yet",
        "one of an older release does not say it",
        "one of two can",
        "another service",
        "a script",
        "the only one ends",
        "the only one has not the agent",
        "it has another definition of the agent",
    ],
)
async def test_a_model_that_a_worker_may_be_able_to_ask_is_accepted(
    client: JobClient, hand: Hand, workers: list[WorkerInfo], model: str
) -> None:
    assert await submitted(client, hand, workers, model)


async def test_a_job_without_a_model_has_that_of_the_workers(
    client: JobClient, hand: Hand, definitions: AgentDefinitions
) -> None:
    worker = lacking(definitions=definitions.digests())

    with pytest.raises(InvalidJob, match="this job's model: gpt-5 needs OPENAI_API_KEY"):
        await submitted(client, hand, [worker], "")


async def test_a_key_that_a_worker_gets_counts_at_the_next_submission(
    client: JobClient, hand: Hand
) -> None:
    with pytest.raises(InvalidJob):
        await submitted(client, hand, [lacking()], "gpt-5")

    assert await submitted(client, hand, [lacking(model_faults={})], "gpt-5")
