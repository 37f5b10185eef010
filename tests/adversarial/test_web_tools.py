"""A page, a redirect or a name server tries to lead an agent's web tools into private networks."""

import contextlib
import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.deep_agent.tools import documents
from fanout.orchestrator.extras.web import client as web_client
from fanout.orchestrator.extras.web import fetch
from fanout.orchestrator.extras.web.client import public_client
from fanout.orchestrator.extras.web.fetch import WebFetch
from fanout.orchestrator.extras.web.search import SearchApi, WebSearch
from fanout.orchestrator.public_addresses import is_public
from tests.contract.file_tools import Context
from tests.documents import pdf
from tests.loopback import LoopbackHandler, loopback_server
from tests.waits import eventually

pytestmark = pytest.mark.blocks_loop(
    "the server of these tests lives in a thread, and stopping it waits"
)

CONTEXT: Any = Context()
FLOOD_BYTES = 400 * 1024**2
PAGE = b"<html><head><script>steal()</script></head><body><h1>Bread</h1><p>Rye &amp; wheat.</p>"


class Site(LoopbackHandler):
    """Pages by path; it counts what came."""

    seen: list[tuple[str, dict[str, str]]]

    def get(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        path, _, query = self.path.partition("?")
        if path == "/to":
            self.send_response(302)
            self.send_header("Location", query)
            self.end_headers()
            return
        body, kind = PAGE, "text/html; charset=utf-8"
        if path == "/big":
            body, kind = b"x" * (fetch.MAX_BYTES + 1), "text/plain"
        elif path == "/image":
            kind = "image/png"
        elif path == "/comments":
            body = b"<!--" * 50_000
        elif path == "/nested":
            body = b"<div>" * 5_000 + b"Rye."
        elif path == "/no-markup":
            body = b"<![ "
        elif path == "/encoded":
            body, kind = b"a-" + b"b9" * 100_000, "text/plain; charset=punycode"
        elif path == "/bomb":
            self._packed(gzip.compress(bytes(4 * fetch.MAX_BYTES)), "gzip")
            return
        elif path == "/strange":
            self._packed(b"zzzz", "br")
            return
        elif path == "/packed":
            self._packed(gzip.compress(b"Rye and wheat."), "gzip")
            return
        elif path == "/busy":
            self.send_response(429)
            self.send_header("Retry-After", "7")
            self.end_headers()
            return
        elif path == "/drips":
            self._drip()
            return
        elif path == "/latin":
            body, kind = "<meta charset=iso-8859-1>Bäcker".encode("latin-1"), "text/html"
        elif path == "/pdf":
            body, kind = pdf("Rye in a PDF"), "application/pdf"
        elif path == "/long":
            body, kind = b"y" * (fetch.MAX_CHARACTERS + 5), "text/plain"
        elif path == "/flood":
            self._flood()
            return
        elif path == "/search":
            body = b'{"web": {"hits": [{"name": "a", "link": "http://a/", "text": "A"}, "odd"]}}'
            kind = "application/json"
        self.send_response(404 if path == "/missing" else 200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def _packed(self, body: bytes, encoding: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Encoding", encoding)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _drip(self) -> None:
        """Send a byte now and then, until nobody listens."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b".")
                time.sleep(0.05)

    def _flood(self) -> None:
        """Send JSON without an end, until nobody listens."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        sent = 0
        with contextlib.suppress(OSError):
            while sent < FLOOD_BYTES:
                self.wfile.write(b'{"results": [' + b" " * 65_536)
                sent += 65_536
        self.seen.append(("flooded", {"bytes": str(sent)}))


@contextmanager
def site() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    seen: list[tuple[str, dict[str, str]]] = []
    with loopback_server(type("Handler", (Site,), {"seen": seen}), str) as url:
        yield url, seen


async def fetched(url: str, *, allowed: tuple[str, ...] = (), **args: Any) -> dict[str, Any]:
    tool = WebFetch(allowed_hosts=allowed, seconds=5).tool()
    result: dict[str, Any] = await tool.run_async(args={"url": url, **args}, tool_context=CONTEXT)
    return result


HERE = ("127.0.0.1",)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1"),  # noqa: S104 - asked for, not bound
        *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "fec0::1"),
    ],
)
def test_an_address_that_is_not_of_the_public_web_is_none(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_an_address_of_the_public_web_is_one(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:7f00:1]"]
)
async def test_this_machine_is_not_reached_however_it_is_written(host: str) -> None:
    with site() as (url, seen):
        result = await fetched(url.replace("127.0.0.1", host))
    assert result["status"] == "error"
    assert seen == []


async def test_a_redirect_into_this_machine_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved_to_here(monkeypatch, "public.example")
    with site() as (url, seen):
        port = url.rpartition(":")[2]
        result = await fetched(
            f"http://public.example:{port}/to?http://127.0.0.1:{port}/secret",
            allowed=("public.example",),
        )
    assert "not on the public web" in result["error"]
    assert [path.partition("?")[0] for path, _ in seen] == ["/to"]


async def test_a_name_that_resolves_to_a_public_and_a_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved_to_here(monkeypatch, "rebind.example", first="8.8.8.8")
    with site() as (url, seen):
        result = await fetched(url.replace("127.0.0.1", "rebind.example"))
    assert "not on the public web" in result["error"]
    assert seen == []


async def test_the_checked_address_is_the_one_that_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    answers = iter(["8.8.8.8", "127.0.0.1"])

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return [next(answers)]

    monkeypatch.setattr(web_client, "look_up", resolve)
    connected: list[str] = []

    async def connect(_: Any, host: str, *__: Any) -> Any:
        connected.append(host)
        raise OSError("no network in a test")

    monkeypatch.setattr("httpcore.AnyIOBackend.connect_tcp", connect)
    async with public_client(1) as client:
        with pytest.raises((httpx.HTTPError, OSError)):
            await client.get("http://rebind.example/")
    assert (asked, connected) == (["rebind.example"], ["8.8.8.8"])


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with site() as (url, seen):
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("ALL_PROXY", url)
        await fetched("http://127.0.0.1:9/")
    assert seen == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://a/",
        "gopher://a/",
        "//a",
        "",
        "http://",
        "http://u:p@a.example/",
    ],
)
async def test_what_is_no_plain_web_address_is_refused(url: str) -> None:
    assert (await fetched(url))["error"].startswith("url ")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/big", "more than"),
        ("/image", "is image/png, not text"),
        ("/missing", "status 404"),
        ("/to?/to", "redirected too often"),
        ("/flood", "more than 5242880 bytes"),
        ("/bomb", "more than 5242880 bytes"),
        ("/strange", "packed with 'br', which is not read"),
        ("/busy", "too many requests: use another source, or try in 7 s"),
        ("/drips", "did not answer within 5 s"),
        ("/to?http://u:p@a.example/", "must not hold a user or a password"),
        ("/to?file:///etc/passwd", "must begin with http"),
    ],
)
async def test_an_answer_beyond_a_limit_is_one_sentence(path: str, words: str) -> None:
    with site() as (url, _):
        target = url + (path if path != "/to?/to" else "/to?" + f"{url}/to?" * 8)
        result = await fetched(target, allowed=HERE)
    assert words in result["error"]


async def test_a_page_becomes_text_without_its_scripts_and_a_long_one_is_read_on() -> None:
    with site() as (url, _):
        page = await fetched(f"{url}/page", allowed=HERE)
        first = await fetched(f"{url}/long", allowed=HERE)
        rest = await fetched(f"{url}/long", allowed=HERE, offset=first["next_offset"])
    assert page["content"] == "# Bread\nRye & wheat."
    assert len(first["content"]) == fetch.MAX_CHARACTERS
    assert rest["content"] == "yyyyy"
    assert "next_offset" not in rest


async def test_pages_of_other_encodings_and_pdfs_are_text_too() -> None:
    with site() as (url, _):
        found = [
            (await fetched(f"{url}/{path}", allowed=HERE))["content"]
            for path in ("packed", "latin", "pdf")
        ]
    assert found[:2] == ["Rye and wheat.", "Bäcker"]
    assert "Rye in a PDF" in found[2]


async def test_only_listed_hosts_and_ports_of_the_web_are_read() -> None:
    with site() as (url, seen):
        tool = WebFetch(hosts=["example.org", "*.example.net"], allowed_hosts=HERE).tool()
        elsewhere = await tool.run_async(args={"url": url}, tool_context=CONTEXT)
        mail = await fetched("http://127.0.0.2:25/")
        other_port = await fetched(url, allowed=("127.0.0.1:1",))
    assert "these hosts are: example.org, *.example.net" in elsewhere["error"]
    assert "not a port of the web" in mail["error"]
    assert "not on the public web" in other_port["error"]
    assert seen == []


async def test_a_page_that_is_slow_to_convert_is_left_by_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "CONVERSION_CPU_SECONDS", 1)
    with site() as (url, _):
        result = await fetched(f"{url}/comments", allowed=HERE)
    assert "takes more than 1 seconds or 1 GiB of memory" in result["error"]


async def test_an_odd_page_costs_no_more_than_another_one() -> None:
    with site() as (url, _):
        nested = await fetched(f"{url}/nested", allowed=HERE)
        odd = await fetched(f"{url}/no-markup", allowed=HERE)
        encoded = await fetched(f"{url}/encoded", allowed=HERE)
    assert nested["content"] == "Rye."
    assert "cannot be read as HTML" in odd["error"]
    assert encoded["content"].startswith("a-b9b9")  # as UTF-8: no decoder of names was asked


async def test_a_search_sends_its_key_in_the_header_only_and_survives_odd_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_SEARCH_KEY", "canary-key-1")
    with site() as (url, seen):
        api = SearchApi(
            url=url + "/search?q={query}&n={count}",
            key_variable="ACME_SEARCH_KEY",
            key_header="X-Key",
            results="web.hits",
            title="name",
            link="link",
            snippet="text",
            allowed_hosts=HERE,
        )
        tool = WebSearch(api).tool()
        args = {"query": "rye & {count}", "count": 5}
        result = await tool.run_async(args=args, tool_context=CONTEXT)
    assert result["results"] == [
        {"title": "a", "url": "http://a/", "snippet": "A"},
        {"title": "", "url": "", "snippet": ""},
    ]
    ((path, headers),) = seen
    assert path.startswith("/search?q=rye%20%26%20%7Bcount%7D&n=5")
    assert headers["X-Key"] == "canary-key-1"
    monkeypatch.delenv("ACME_SEARCH_KEY")
    missing = await tool.run_async(args=args, tool_context=CONTEXT)
    assert "ACME_SEARCH_KEY" in missing["error"]


async def test_a_search_answer_without_an_end_is_not_loaded_and_is_not_called_empty() -> None:
    with site() as (url, seen):
        tool = WebSearch(SearchApi(url=url + "/flood?q={query}", allowed_hosts=HERE)).tool()
        result = await tool.run_async(args={"query": "rye"}, tool_context=CONTEXT)
        await eventually(lambda: len(seen) >= 2)
    assert "more than 2097152 bytes" in result["error"]
    assert "with count" in result["error"]
    _, (_, sent) = seen
    assert int(sent["bytes"]) < FLOOD_BYTES / 4


def resolved_to_here(monkeypatch: pytest.MonkeyPatch, name: str, first: str | None = None) -> None:
    """Make a name resolve to this machine, after another address if one is given."""
    real = web_client.look_up

    def resolve(host: str, port: int) -> list[str]:
        if host != name:
            return real(host, port)
        return [*([first] if first else []), "127.0.0.1"]

    monkeypatch.setattr(web_client, "look_up", resolve)


def test_a_search_key_without_a_service_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FANOUT_WEB__SEARCH_KEY", "canary-key-of-brave")
    with pytest.raises(InvalidSetting) as refused:
        load_settings()
    assert "FANOUT_WEB is not allowed: search_url and search_key need search" in str(refused.value)
    assert "canary" not in str(refused.value)
