"""Nobody gets more than the installation gives a job, and no child more than its parent."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition, AgentDefinitions
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.deep_agent import ModelUsage
from fanout.orchestrator.jobs.ceilings import Ceilings, no_more_than
from fanout.orchestrator.jobs.failures import LimitExceeded
from fanout.orchestrator.jobs.spec import GIB, JobSpec, Limits
from fanout.workers.agent.delegation.child_jobs import ChildJobs
from fanout.workers.agent.delegation.inherited_conversation import CallersConversation
from fanout.workers.agent.services import JobServices
from tests.builders import make_spec

PIB = 1024**5

OVER = {
    "memory_bytes": PIB,
    "disk_bytes": PIB,
    "network_bytes": PIB,
    "cpus": 1e6,
    "pids": 10**9,
    "timeout_seconds": 1e12,
    "max_model_calls": 10**9,
    "max_tool_calls": 10**9,
    "max_calls": 10**9,
    "max_wait_seconds": 1e12,
    "max_tokens": 10**15,
    "max_cost_usd": 1e9,
}

NO_HOST_OF_THE_INTERNET = """
    169.254.169.254 169.254.169.254:80 2852039166 0xa9fea9fe 0xA9.0xFE.0xA9.0xFE 0251.0376.0251.0376
    169.254.43518 127.1 0x7f.1 [::1] ::1 ::ffff:169.254.169.254 [fd00:ec2::254]:80 10.0.0.1
    localhost localhost:8080 a.localhost LOCALHOST. metadata metadata.google.internal redis db:5432
    Metadata.Azure.Com instance-data.ec2.internal host.docker.internal *.internal printer.local
    router.lan home.arpa *.local * *.com https://example.org example.org/path user@example.org
    example.org:99999 example..org -a.example.org 1.1.1.1. 254.169.254.169.in-addr.arpa
    \N{FULLWIDTH DIGIT ONE}0.0.0.1 example.org:0
""".split()  # noqa: SIM905

HOSTS = """
    example.org *.example.org pypi.org:443 API.Example.org b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.org
    a_b.example.org x.co.uk:8443 1password.com
""".split()  # noqa: SIM905


@pytest.mark.parametrize(("name", "asked"), OVER.items())
def test_each_limit_has_a_ceiling_and_the_refusal_names_all_three(name, asked):
    with pytest.raises(LimitExceeded) as refusal:
        Ceilings().check(Limits.model_validate({name: asked}))

    text = str(refusal.value)
    assert f"limits.{name}" in text
    assert f"{asked:,}" in text
    assert f"{getattr(Ceilings(), name):,}" in text
    assert f"FANOUT_CEILINGS__{name.upper()}" in text


def test_no_limit_is_without_a_ceiling():
    assert set(Ceilings.model_fields) == set(Limits.model_fields) == {*OVER, "network"}


def test_infinity_is_above_every_ceiling():
    with pytest.raises(LimitExceeded):
        Ceilings().check(Limits.model_validate_json('{"timeout_seconds": Infinity}'))


@pytest.mark.parametrize("host", NO_HOST_OF_THE_INTERNET)
def test_addresses_and_local_names_are_no_hosts_that_a_job_may_ask_for(host):
    with pytest.raises(LimitExceeded, match="no job may reach"):
        Ceilings().check(Limits(network=("example.org", host)))


@pytest.mark.parametrize("host", HOSTS)
def test_names_of_the_internet_may_be_asked_for(host):
    limits = Limits(network=(host,))

    Ceilings().check(limits)

    assert limits.network == (host,), "it is not rewritten"


def test_an_installation_names_the_hosts_that_jobs_may_reach():
    ceilings = Ceilings(network=("*.example.org", "10.0.0.7:5432"))

    ceilings.check(Limits(network=("api.example.org", "10.0.0.7:5432", "*.a.example.org")))
    for host in ("example.com", "example.org", "10.0.0.7", "api.example.org:8080", "*.org"):
        with pytest.raises(LimitExceeded, match="FANOUT_CEILINGS__NETWORK"):
            ceilings.check(Limits(network=(host,)))
    with pytest.raises(LimitExceeded):
        Ceilings(network="none").check(Limits(network=("example.org",)))


@pytest.fixture
def small_settings() -> Settings:
    return Settings(redis_url="redis://127.0.0.1:1/0", ceilings=Ceilings(memory_bytes=GIB))


async def test_a_client_refuses_before_anything_is_stored(small_settings):
    known = AgentDefinitions({"a": agent("a")})
    async with JobClient("redis://127.0.0.1:1/0", small_settings, known) as client:
        with pytest.raises(LimitExceeded, match=r"2,147,483,648.*1,073,741,824"):
            await client.submit(make_spec(agent="a", limits={"memory_bytes": 2 * GIB}))


def services(*definitions: AgentDefinition, **fields: Any) -> JobServices:
    unused: Any = SimpleNamespace()
    known = AgentDefinitions({one.name: one for one in definitions})
    values: dict[str, Any] = {
        "defaults": Settings().limits.for_jobs(),
        "bounds": Settings().limits.tree_bounds(),
        **fields,
    }
    return JobServices(ledger=unused, journal=unused, blobs=unused, definitions=known, **values)


def agent(name: str, **fields: Any) -> AgentDefinition:
    return AgentDefinition.model_validate(
        {"name": name, "description": "x", "instruction": "x", **fields}
    )


@pytest.mark.parametrize("limits", [{"memory_bytes": PIB}, {"network": ["169.254.169.254"]}])
def test_the_worker_refuses_what_somebody_wrote_into_the_ledger_or_a_definition(limits):
    with pytest.raises(LimitExceeded):
        services(agent("a")).limits_of(make_spec(agent="a", limits=limits))
    with pytest.raises(LimitExceeded):
        services(agent("a", limits=limits)).limits_of(make_spec(agent="a"))


def test_what_nobody_limits_is_limited_by_the_ceiling_and_a_default_is_no_more_than_it():
    found = services(agent("a"), ceilings=Ceilings(memory_bytes=2**28)).limits_of(
        make_spec(agent="a")
    )

    assert found.memory_bytes == 2**28
    assert found.max_tokens == Ceilings().max_tokens


def child_limits(parent: dict[str, Any], helper: dict[str, Any], **task: Any) -> Limits:
    lead = agent("lead", subagents=["helper"])
    shared = services(lead, agent("helper", **helper), agent("general-purpose"))
    spec = make_spec(agent="lead", limits=parent)
    nothing: Any = None
    jobs = ChildJobs(
        shared, spec, lead, sandbox=nothing, lease=nothing, ends_at=math.inf, used=ModelUsage
    )
    item = {"description": "do it", "subagent_type": "helper", **task}
    child = jobs.child("call", 0, item, CallersConversation("lead", [], "call"))
    assert isinstance(child, JobSpec), child
    return child.limits


def test_a_child_has_at_most_its_parents_resources():
    small: dict[str, Any] = {
        "cpus": 0.5,
        "memory_bytes": 2**27,
        "pids": 32,
        "disk_bytes": 2**24,
        "network_bytes": 2**20,
    }
    large: dict[str, Any] = {
        "cpus": 8,
        "memory_bytes": 8 * GIB,
        "pids": 1000,
        "disk_bytes": 9 * GIB,
    }
    large["network_bytes"] = 9 * GIB

    of_a_small_parent = child_limits(small, {"limits": large})
    of_a_large_parent = child_limits(large, {"limits": small})

    for name, value in small.items():
        assert getattr(of_a_small_parent, name) == value
        assert getattr(of_a_large_parent, name) == value


@pytest.mark.parametrize(
    ("parent", "helper", "child"),
    [
        ("none", ["example.org"], "none"),
        (["example.org"], "none", "none"),
        (["a.example.org", "b.org"], ["b.org", "c.org"], ("b.org",)),
        (["*.example.org"], ["a.example.org", "example.com"], ("a.example.org",)),
        (["a.example.org"], ["*.example.org"], ("a.example.org",)),
        (["a.org:443"], ["a.org:8443"], "none"),
    ],
)
def test_a_child_reaches_only_hosts_that_its_parent_reaches(parent, helper, child):
    assert child_limits({"network": parent}, {"network": helper}).network == child


def test_a_call_gives_a_child_less_time_than_its_definition_and_never_more():
    helper = {"limits": {"timeout_seconds": 60}}

    assert child_limits({}, helper, timeout_seconds=1e9).timeout_seconds == 60
    assert child_limits({}, helper, timeout_seconds=5).timeout_seconds == 5
    assert child_limits({}, helper).timeout_seconds == 60


def test_a_childs_limits_are_never_above_the_ceilings():
    found = child_limits({}, {"limits": {"memory_bytes": PIB, "timeout_seconds": 1e9}})

    Ceilings().check(found)
    assert found.memory_bytes <= Ceilings().memory_bytes
    assert found.timeout_seconds == Ceilings().timeout_seconds


def test_no_more_than_keeps_what_only_one_side_limits():
    assert no_more_than(Limits(cpus=2), Limits(pids=20)) == Limits(cpus=2, pids=20)


def test_the_settings_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("FANOUT_CEILINGS__MEMORY_BYTES", str(GIB))
    monkeypatch.setenv("FANOUT_CEILINGS__NETWORK", json.dumps(["example.org"]))

    assert Settings().ceilings.memory_bytes == GIB
    assert Settings().ceilings.network == ("example.org",)
