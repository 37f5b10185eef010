from __future__ import annotations

import contextlib
import ipaddress
from typing import Any

import pytest

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.public_addresses import is_public
from fanout.workers.sandbox.egress.exchange import Refusal, parse_request
from fanout.workers.sandbox.egress.uplink import AllowedHosts

# What may be reached


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "100.64.0.1", "100.100.100.200", "169.254.169.254", "169.254.170.2", "168.63.129.16", "192.0.0.192",
        "198.18.0.1", "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1",
        "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "fe80::1", "fc00::1",
        "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_on_the_internet_are_known(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"],
)
def test_addresses_on_the_internet_are_known(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("entry", "host", "port", "is_named"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("Example.ORG.", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "badexample.org", 443, False),
        ("example.org", "example.org.evil.example", 443, False),
        ("example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("*.example.org:81", "www.example.org", 81, True),
        ("*.example.org:81", "www.example.org", 443, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("192.0.2.7", "192.0.2.7", 443, True),
        ("2001:db8::7", "2001:DB8:0:0::7", 443, True),
        ("[2001:db8::7]:81", "2001:db8::7", 81, True),
        ("127.0.0.1", "::ffff:127.0.0.1", 443, False),
    ],
)
def test_an_entry_opens_what_it_says(entry: str, host: str, port: int, is_named: bool) -> None:
    address: Any = host
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)

    assert AllowedHosts([entry]).names(address, port) is is_named


@pytest.mark.parametrize(
    "entry",
    [
        "", "*", "*.", "*.org", "a.*.org", "*example.org", "http://example.org", "example.org/path",
        "user@example.org", "example.org:0", "example.org:65536", "example.org:", "example.org:https",
        "exa mple.org", "example..org", "-a.org", "a" * 64 + ".org", "2130706433", "0x7f000001", "127.1",
        "0177.0.0.1", "*.127.0.0.1", "fe80::1%eth0", "[::1", "example.org\n", "**.example.org",
        ".example.org",
    ],
)  # fmt: skip
def test_an_entry_that_is_no_host_is_an_invalid_job(entry: str) -> None:
    with pytest.raises(InvalidJob, match="network"):
        AllowedHosts(["example.org", entry])


# What is asked


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1", b"GET http://a.example/", b"GET http://a.example/ HTTP/2.0", b"hello",
        b"GET  http://a.example/ HTTP/1.1", b" GET http://a.example/ HTTP/1.1",
        b"\r\nGET http://a.example/ HTTP/1.1",
        b"GET https://a.example/ HTTP/1.1", b"GET ftp://a.example/ HTTP/1.1", b"GET http:///x HTTP/1.1",
        b"GET http://user@a.example/ HTTP/1.1", b"GET http://a.example:80@b.example/ HTTP/1.1",
        b"GET http://a.example\\@b.example/ HTTP/1.1", b"GET http://a.example%2eb.example/ HTTP/1.1",
        b"GET http://a.example#@b.example/ HTTP/1.1", b"GET http://a.example:99999/ HTTP/1.1",
        b"GET http://a.example\t/ HTTP/1.1", b"GET http://a.example\x00/ HTTP/1.1",
        b"GET http://\xe4.example/ HTTP/1.1", b"GET http://2130706433/ HTTP/1.1",
        b"GET http://0x7f.1/ HTTP/1.1",
        b"GET http://0177.0.0.1/ HTTP/1.1", b"GET http://127.1/ HTTP/1.1", b"GET http://[::1%25lo]/ HTTP/1.1",
        b"CONNECT a.example HTTP/1.1", b"CONNECT a.example: HTTP/1.1", b"CONNECT u@a.example:443 HTTP/1.1",
        b"CONNECT http://a.example:443 HTTP/1.1", b"CONNECT 2130706433:80 HTTP/1.1",
        b"CONNECT a.example:443/ HTTP/1.1", b"CONNECT ::1:443 HTTP/1.1",
        b"GET http://a.example/ HTTP/1.1\r\n Host: folded", b"GET http://a.example/ HTTP/1.1\r\nHost : a",
        b"GET http://a.example/ HTTP/1.1\r\nno colon", b"GET http://a.example/ HTTP/1.1\r\nA: b\nHost: c",
        b"GET http://a.example/ HTTP/1.1\r\nA: b\rc", b"GET http://a.example/ HTTP/1.1\r\nA: \x00",
        b"POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"POST http://a.example/ HTTP/1.1\r\nContent-Length: +1",
        b"POST http://a.example/ HTTP/1.1\r\nContent-Length: -1",
        b"POST http://a.example/ HTTP/1.1\r\nTransfer-Encoding: gzip",
        b"POST http://a.example/ HTTP/1.1\r\nTransfer-Encoding: chunked, chunked",
        b"POST http://a.example/ HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
)  # fmt: skip
def test_a_request_that_could_be_read_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse_request(head + b"\r\n\r\n")

    assert refused.value.status == 400


def test_a_request_is_passed_on_without_what_was_meant_for_the_proxy() -> None:
    request = parse_request(
        b"POST http://A.example?q=1 HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: Basic eA==\r\n"
        b"Connection: keep-alive, X-Hop, Content-Length\r\nX-Hop: 1\r\nX-Kept: two  words \r\n"
        b"Content-Length: 3\r\n\r\n"
    )

    assert (request.host, request.port, request.body) == ("a.example", 80, 3)
    assert request.head == (
        b"POST /?q=1 HTTP/1.1\r\nHost: A.example\r\nX-Kept: two  words\r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )
