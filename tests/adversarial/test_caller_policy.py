"""A key with `submit` asks, at every door, for what its caller may not choose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc.aio
import httpx
import httpx2
import pytest
from a2a.client import Client as A2AClient
from a2a.client import ClientCallContext, ClientConfig, create_client
from a2a.client.client_factory import minimal_agent_card
from a2a.types import Message, Part, Role, SendMessageRequest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from fanout.orchestrator.configuration.api_settings import CallerSettings
from fanout.orchestrator.jobs.network_names import is_covered
from fanout.orchestrator.jobs.spec import ANYTHING, DEFINITIONS_ONLY, CallerPolicy, Limits
from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.integration.scripts import DONE, conversation, shell
from tests.integration.worker.children import children_of, delegates
from tests.served import ServerProcess, make_key
from tests.services import Installation, Installer, free_port

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

CANARY = "root:$6$canary"
REACHING = """
name: reaching
description: Reaches two hosts.
instruction: Do it.
model: gemini-2.5-flash
network: ["*.example.org", "example.com"]
limits: {timeout_seconds: 60}
verify: make check
"""
READER = """
name: reader
description: Runs no commands.
instruction: Do it.
tools: [ls, read_file]
"""
GUARDED = """
name: guarded
description: A person approves its commands.
instruction: Do it.
interrupt_on: {execute: true}
"""
LEAD = """
name: lead
description: Delegates.
instruction: Do it.
subagents: [general-purpose]
"""
SCRIPT = (
    conversation("^lead", delegates("below"), DONE),
    conversation("^below", DONE),
    conversation("^short", shell("true"), DONE),
)
Refusal = tuple[bool, str]
"""Whether a door refused, and all that it said."""


@dataclass
class Doors:
    """A service with a worker, and its doors for the keys of several callers."""

    place: Installation
    server: ServerProcess
    secret: Path
    keys: dict[str, str] = field(default_factory=dict)

    def http(self, key: str) -> httpx2.AsyncClient:
        return self.server.client(self.keys[key])

    async def job(self, key: str, fields: dict[str, Any]) -> Refusal:
        return await self._post(key, "/v1/jobs", {"description": "short", **fields})

    async def accepts(self, key: str, fields: dict[str, Any]) -> None:
        """A job is accepted; cancelled, it does not try for minutes to reach its model."""
        refused, said = await self.job(key, fields)
        assert not refused, said
        async with self.http(key) as http:
            await http.post(f"/v1/jobs/{json.loads(said)['id']}:cancel")

    async def batch(self, key: str, fields: dict[str, Any]) -> Refusal:
        jobs = [{"description": "short"}, {"description": "short", **fields}]
        return await self._post(key, "/v1/jobs", jobs)

    async def run(self, key: str, fields: dict[str, Any]) -> Refusal:
        return await self._post(
            key, "/v1/runs", {"goal": "short", "agent": "general-purpose", **fields}
        )

    async def mcp(self, key: str, fields: dict[str, Any]) -> Refusal:
        async with self.http(key) as http:
            transport = streamable_http_client(self.server.url + "/mcp", http_client=http)
            async with Client(transport) as client:
                given = {"description": "short", **_of_mcp(fields)}
                result = await client.call_tool("submit_job", given)
        return bool(result.is_error), str(result.content)

    async def a2a(self, key: str, fields: dict[str, Any]) -> Refusal:
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            config = ClientConfig(httpx_client=http)
            return await _sent(await create_client(self.server.url, config), fields, None)

    async def grpc(self, key: str, fields: dict[str, Any]) -> Refusal:
        port = self.server.settings["FANOUT_API__GRPC_PORT"]
        card = minimal_agent_card(f"127.0.0.1:{port}", ["GRPC"])
        card.capabilities.streaming = True
        config = ClientConfig(
            grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=["GRPC"]
        )
        context = ClientCallContext(
            service_parameters={"authorization": f"Bearer {self.keys[key]}"}
        )
        async with await create_client(card, config) as client:
            return await _sent(client, fields, context)

    async def _post(self, key: str, path: str, body: Any) -> Refusal:
        async with self.http(key) as http:
            answer = await http.post(path, json=body)
        assert answer.status_code in {201, 403, 422}, answer.text
        return answer.status_code != 201, answer.text


async def _sent(
    client: A2AClient, fields: dict[str, Any], context: ClientCallContext | None
) -> Refusal:
    message = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=[Part(text="short")])
    message.metadata.update({f"fanout.{name}": value for name, value in fields.items()})
    try:
        stream = client.send_message(SendMessageRequest(message=message), context=context)
        seen = [str(one) async for one in stream]
    except Exception as refusal:  # noqa: BLE001 - of whatever kind a binding makes it
        return True, str(refusal)
    return False, "".join(seen)


def _of_mcp(fields: dict[str, Any]) -> dict[str, Any]:
    """The arguments of MCP's tool, which has no `limits` but one of them."""
    given = {name: value for name, value in fields.items() if name != "limits"}
    return given | {
        name: value for name, value in fields.get("limits", {}).items() if name == "timeout_seconds"
    }


@pytest.fixture(scope="module")
def doors(install_for_module: Installer) -> Iterator[Doors]:
    agents = install_for_module.folder / "agents"
    agents.mkdir()
    for definition in (REACHING, READER, GUARDED, LEAD):
        (agents / f"{definition.split()[1]}.yaml").write_text(definition)
    secret = install_for_module.folder / "shadow"
    secret.write_text(f"{CANARY}\n")
    # No service is asked, but a job is refused when no worker could ask its model.
    keys = {"GOOGLE_API_KEY": "unused", "OPENAI_API_KEY": "unused"}
    place = install_for_module(*SCRIPT, FANOUT_AGENTS_DIR=str(agents), **keys)
    place.start_worker(concurrency=2)
    settings = {
        "FANOUT_API__GRPC_PORT": str(free_port()),
        "FANOUT_API__CALLERS__TENANTS": '{"team": {"models": ["gemini-*"]}}',
    }
    server = ServerProcess(place, settings=settings)
    made = Doors(place, server, secret)
    listed = CallerPolicy(
        models=("gemini-*",),
        verify=("make test",),
        limits=Limits(timeout_seconds=3600, network=("pypi.org",)),
    )
    policies = {"new": DEFINITIONS_ONLY, "old": ANYTHING, "listed": listed}
    for name, policy in policies.items():
        made.keys[name] = asyncio.run(make_key(place, name, policy=policy))
    made.keys["of-team"] = asyncio.run(make_key(place, "of-team", tenant="team"))
    server.start()
    yield made
    server.stop()


DOORS: dict[str, Callable[[Doors, str, dict[str, Any]], Awaitable[Refusal]]] = {
    "one job": Doors.job,
    "the second job of a list": Doors.batch,
    "a run": Doors.run,
    "MCP": Doors.mcp,
    "A2A": Doors.a2a,
    "gRPC": Doors.grpc,
}
every_door = pytest.mark.parametrize("door", DOORS)

CHOICES: dict[str, dict[str, Any]] = {
    "a model": {"model": "gpt-5"},
    "a model behind one of the definition": {
        "model": "gemini-2.5-flash,gpt-5",
        "agent": "reaching",
    },
    "a command": {"verify": "curl http://127.0.0.1"},
    "a longer command": {"verify": "make check; id", "agent": "reaching"},
    "more time": {"limits": {"timeout_seconds": 1900}},
}
WITHOUT_MCP: dict[str, dict[str, Any]] = {
    "a command for merges": {"verify_merges": "id"},
    "more memory": {"limits": {"memory_bytes": 2 * 1024**3}},
    "a host": {"limits": {"network": ["example.net"]}},
    "a pattern of hosts": {"limits": {"network": ["*.example.com"]}, "agent": "reaching"},
}


@every_door
async def test_a_new_key_chooses_nothing_beyond_the_definition(doors: Doors, door: str) -> None:
    for fields in (CHOICES if door == "MCP" else {**CHOICES, **WITHOUT_MCP}).values():
        refused, said = await DOORS[door](doors, "new", fields)

        assert refused, (fields, said)
        assert "have an operator" in said


@every_door
async def test_a_scripted_model_never_comes_from_a_caller(doors: Doors, door: str) -> None:
    path = doors.secret
    for key, model in {
        "new": f" scripted:{path} ",
        "old": f"scripted:{path}",
        "listed": f"gemini-2.5-flash, SCRIPTED:{path}",
    }.items():
        refused, said = await DOORS[door](doors, key, {"model": model, "agent": "reaching"})

        assert refused, (model, said)
        assert "scripted model" in said
        assert CANARY not in said


@every_door
async def test_a_command_does_not_run_by_an_agent_that_may_run_none_by_itself(
    doors: Doors, door: str
) -> None:
    for key, agent in (("new", "reader"), ("old", "reader"), ("old", "guarded")):
        refused, said = await DOORS[door](doors, key, {"agent": agent, "verify": "id"})

        assert refused, (key, agent, said)
        assert "may not run commands on its own" in said


@every_door
async def test_no_door_takes_an_image(doors: Doors, door: str) -> None:
    refused, said = await DOORS[door](doors, "old", {"image": "attacker/image"})

    assert refused or door == "MCP", said


PERMITTED: dict[str, dict[str, Any]] = {
    "a model of a pattern": {"model": "gemini-2.5-pro"},
    "a listed command": {"verify": "make test"},
    "a listed host": {"limits": {"network": ["pypi.org:443"]}},
    "time up to the bound": {"limits": {"timeout_seconds": 3600}},
    "the definition's own": {
        "agent": "reaching",
        "model": "gemini-2.5-flash",
        "verify": "make check",
        "limits": {"network": ["a.example.org", "EXAMPLE.com:443"], "timeout_seconds": 30},
    },
}


@pytest.mark.parametrize("choice", PERMITTED)
async def test_what_an_operator_lists_may_be_chosen(doors: Doors, choice: str) -> None:
    await doors.accepts("listed", PERMITTED[choice])


async def test_a_tenants_list_holds_for_its_keys(doors: Doors) -> None:
    await doors.accepts("of-team", {"model": "gemini-2.5-pro"})
    refused, said = await doors.job("of-team", {"model": "claude-opus-4-5"})

    assert refused
    assert "gemini-*" in said


async def test_a_key_of_before_keeps_what_it_had_but_no_hosts_beyond_the_definition(
    doors: Doors,
) -> None:
    kept = {"model": "gpt-5", "verify": "id", "limits": {"timeout_seconds": 4000}}
    await doors.accepts("old", kept)

    refused, said = await doors.job("old", {"limits": {"network": ["example.net"]}})
    assert refused
    assert "FANOUT_CEILINGS__NETWORK" in said


@pytest.mark.parametrize("way", ["retry", "continue"])
async def test_a_job_of_the_operator_gives_a_caller_none_of_its_choices(
    doors: Doors, way: str
) -> None:
    chosen = make_spec("short", owner="new", verify="true", limits={"timeout_seconds": 4000})
    async with doors.place.client() as client, doors.http("new") as http:
        job_id = await client.submit(chosen)
        assert (await client.wait(job_id, 60)).success
        if way == "retry":
            answer = await http.post(f"/v1/jobs/{job_id}:retry")
        else:
            answer = await http.post("/v1/jobs", json={"description": "more", "continues": job_id})

    assert answer.status_code == 403, answer.text
    assert "have an operator" in answer.json()["detail"]


async def test_the_jobs_below_have_the_policy_of_the_caller(doors: Doors) -> None:
    async with doors.place.client() as client, doors.http("new") as http:
        submitted = await http.post("/v1/jobs", json={"description": "lead", "agent": "lead"})
        job_id = submitted.json()["id"]
        result = await client.wait(job_id, 60)
        records = [await client.get(job_id), *await children_of(client, job_id)]

    assert result.success, result.error
    assert [one.caller_policy for one in records] == [DEFINITIONS_ONLY] * 2
    assert [one.wire for one in records] == [3, 3]


FORGED: dict[str, dict[str, Any]] = {
    "scripted model": {"model": "scripted:{secret}"},
    "gpt-5": {"model": "gpt-5"},
    "verify": {"verify": "id"},
    "limits.timeout_seconds": {"limits": {"timeout_seconds": 4000}},
    "limits.network": {"limits": {"network": ["example.net"]}},
    "scripted model of a child": {
        "model": "scripted:{secret}",
        "parent_id": "none",
        "root_id": "none",
    },
}


@pytest.mark.parametrize("choice", FORGED)
async def test_a_worker_checks_again_what_a_door_should_have_refused(
    doors: Doors, choice: str
) -> None:
    fields = dict(FORGED[choice])
    if "model" in fields:
        fields["model"] = fields["model"].format(secret=doors.secret)
    spec = make_spec("forged", caller_policy=DEFINITIONS_ONLY, **fields)
    async with doors.place.client() as client:
        [job_id] = await client._ledger.submit([spec])
        await client._admission.pump()
        result = await client.wait(job_id, 60)

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == "ChoiceRefused", result.error
    assert choice.removesuffix(" of a child") in result.error.message
    assert CANARY not in result.model_dump_json()


async def test_who_has_redis_is_the_operator_and_names_scripts_and_limits(doors: Doors) -> None:
    model = doors.place.environment["FANOUT_MODEL"]
    spec = make_spec("short", model=model, verify="true", limits={"timeout_seconds": 4000})
    async with doors.place.client() as client:
        job_id = await client.submit(spec)
        result = await client.wait(job_id, 60)
        record = await client.get(job_id)

    assert result.success, result.error
    assert (record.caller_policy, record.wire) == (None, 1)


def test_the_most_specific_list_counts_and_the_others_are_taken_from_above() -> None:
    settings = CallerSettings.model_validate({
        "models": ["a"],
        "verify": ["v"],
        "limits": {"cpus": 2},
        "tenants": {"team": {"models": ["b"], "limits": {"pids": 99}}},
        "keys": {"ci": {"models": ["c"]}, "old": {"models": []}},
    })  # fmt: skip

    assert settings.make_policy("default").models == ("a",)
    of_team = settings.make_policy("team")
    assert (of_team.models, of_team.verify) == (("b",), ("v",))
    assert of_team.limits == Limits(cpus=2, pids=99)
    assert settings.make_policy("team", "ci").models == ("c",)
    assert settings.make_policy("team", "other", CallerPolicy(models=("d",))).models == ("d",)
    assert settings.make_policy("default", "ci", CallerPolicy(models=("d",))).models == ("c",)
    assert settings.make_policy("default", "some", ANYTHING).anything
    named = settings.make_policy("default", "old", ANYTHING)
    assert (named.anything, named.models, named.verify) == (False, (), None)


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("*", "*.example.org"),
        ("*.org", "*.example.org"),
        ("example.org", "*.example.org"),
        ("evilexample.org", "*.example.org"),
        ("evil.net/.example.org", "*.example.org"),
        ("user@a.example.org", "*.example.org"),
        ("a.example.org:8443", "*.example.org"),
        ("a.example.org", "*.example.org:8443"),
        ("*.example.org", "a.example.org"),
        ("example.org:22", "example.org"),
        ("a.example.org", "a.example.org:443"),
        ("xn--bcher-kva.org.evil.net", "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.org"),
        ("", "example.org"),
    ],
)
def test_a_host_that_is_wider_than_the_list_is_not_in_it(asked: str, listed: str) -> None:
    assert not is_covered(asked, [listed])


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("A.Example.org", "*.example.ORG"),
        ("*.a.example.org", "*.example.org"),
        ("example.org:443", "example.org"),
        ("a.example.org:80", "*.example.org"),
        ("xn--bcher-kva.org", "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.org"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_a_host_that_is_as_narrow_as_the_list_is_in_it(asked: str, listed: str) -> None:
    assert is_covered(asked, [listed])
