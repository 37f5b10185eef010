"""Requests of any bytes, in any pieces, as the service's connections read them."""

from __future__ import annotations

import h11
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.orchestrator.server.strict_http import RefusedRequest, StrictConnection

PARTS = (
    b"POST /a HTTP/1.1\r\n", b"GET http://a/b HTTP/1.1\r\n", b"Host: a\r\n", b"X: y\r\n", b" z\r\n",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"\n", b"\r", b":", b" ",
    b"abc", b"3\r\nabc\r\n", b"3;a\r\nabc\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"\x00", b"\xff",
)  # fmt: skip
SENT = st.lists(st.sampled_from(PARTS) | st.binary(max_size=3), max_size=12).map(b"".join)


def read(sent: bytes, pieces: int) -> list[bytes] | None:
    """The requests and their bodies, one after the other; None when something is refused."""
    connection = StrictConnection(h11.SERVER)
    found: list[bytes] = []
    try:
        for at in range(0, len(sent), pieces):
            connection.receive_data(sent[at : at + pieces])
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    found += [event.method + b" " + event.target, b""]
                elif isinstance(event, h11.Data):
                    found[-1] += event.data
                elif isinstance(event, h11.EndOfMessage):
                    found[-1] += b"."
                    connection.send(h11.Response(status_code=204, headers=[]))
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is h11.MUST_CLOSE:
                        return found
                    connection.start_next_cycle()
    except RefusedRequest:
        return None
    return found


@given(sent=SENT, pieces=st.integers(1, 7))
@settings(deadline=None)
def test_what_a_request_is_does_not_depend_on_how_it_arrives(sent: bytes, pieces: int):
    assert read(sent, pieces) == read(sent, max(1, len(sent)))
