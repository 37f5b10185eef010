"""The protocol over gRPC: the same tasks, the same keys."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from a2a.client import ClientCallContext, ClientConfig, create_client
from a2a.client.client_factory import minimal_agent_card
from a2a.client.errors import A2AClientError
from a2a.types import GetTaskRequest, TaskState
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from a2a.utils.errors import TaskNotFoundError

from tests.integration.a2a.conftest import Server, events, headers, last_state, message
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]


def as_caller(name: str) -> ClientCallContext:
    given = {key.lower(): value for key, value in headers(name).items()}
    return ClientCallContext(service_parameters=given)


async def test_a_task_is_sent_by_grpc_and_seen_over_http_and_needs_a_key(server: Server) -> None:
    card = minimal_agent_card(f"127.0.0.1:{server.grpc_port}", ["GRPC"])
    config = ClientConfig(
        grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=["GRPC"]
    )
    card.capabilities.streaming = True
    async with await create_client(card, config) as client, server.client() as over_http:
        request = message("write a note")
        seen = await events(client.send_message(request, context=as_caller("ann")))
        assert last_state(seen) == TaskState.TASK_STATE_COMPLETED
        wanted = GetTaskRequest(id=seen[0].task.id)
        task = await client.get_task(wanted, context=as_caller("ann"))
        assert task == await over_http.get_task(wanted)
        with pytest.raises(TaskNotFoundError):
            await client.get_task(wanted, context=as_caller("bob"))
        with pytest.raises(A2AClientError, match="Send a key"):
            await client.get_task(wanted)
        with pytest.raises(A2AClientError):
            await client.get_task(
                wanted, context=ClientCallContext(service_parameters={"x-api-key": "c" * 32})
            )


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("1.0", grpc.StatusCode.NOT_FOUND),
        ("1.7", grpc.StatusCode.NOT_FOUND),
        (None, grpc.StatusCode.NOT_FOUND),
        ("0.3", grpc.StatusCode.FAILED_PRECONDITION),
        ("2.0", grpc.StatusCode.FAILED_PRECONDITION),
        ("1.0, 0.3", grpc.StatusCode.FAILED_PRECONDITION),
        ("newest", grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_a_call_of_another_version_of_the_protocol_is_refused(
    server: Server, version: str | None, code: grpc.StatusCode
) -> None:
    given = [(name.lower(), value) for name, value in headers("ann").items()]
    given += [("a2a-version", version)] if version else []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = A2AServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetTask(GetTaskRequest(id="no-such-task"), metadata=given)
    assert refused.value.code() == code
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        assert "which speaks 1.0" in (refused.value.details() or "")


async def test_keys_cross_a_network_by_tls_only(place: Installation, tmp_path: Path) -> None:
    open_to_all = Server(place, {"FANOUT_API__HOST": "0.0.0.0"})  # noqa: S104 - refused
    with pytest.raises(AssertionError, match="FANOUT_API__GRPC_CERTIFICATE_FILE"):
        open_to_all.start()
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "grpc.crt", tmp_path / "grpc.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    of = {"CERTIFICATE_FILE": str(certificate), "KEY_FILE": str(key)}
    server = Server(place, {f"FANOUT_API__GRPC_{name}": path for name, path in of.items()})
    server.start()
    try:
        trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        config = ClientConfig(
            grpc_channel_factory=lambda url: grpc.aio.secure_channel(url, trusted),
            supported_protocol_bindings=["GRPC"],
        )
        card = minimal_agent_card(f"localhost:{server.grpc_port}", ["GRPC"])
        async with await create_client(card, config) as client:
            with pytest.raises(TaskNotFoundError):
                await client.get_task(GetTaskRequest(id="none"), context=as_caller("ann"))
    finally:
        server.kill()
