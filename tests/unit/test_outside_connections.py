"""No test reaches another machine, whichever way it tries."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

ELSEWHERE = "192.0.2.1"  # an address that documents may name and nobody has (RFC 5737)
REFUSED = pytest.raises(RuntimeError, match="is not this machine")


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_a_socket_is_refused(method: str) -> None:
    with socket.socket() as opened, REFUSED:
        getattr(opened, method)((ELSEWHERE, 80))


def test_a_socket_with_tls_is_refused() -> None:
    context = ssl.create_default_context()
    with socket.socket() as opened, REFUSED:
        context.wrap_socket(opened, server_hostname=ELSEWHERE).connect((ELSEWHERE, 443))


async def test_a_stream_of_asyncio_is_refused() -> None:
    with REFUSED:
        await asyncio.open_connection(ELSEWHERE, 80)


def test_this_machine_is_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), 5) as client,
    ):
        assert client.getpeername() == server.getsockname()
