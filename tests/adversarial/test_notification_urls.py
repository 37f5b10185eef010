"""A stranger registers a webhook that leads into the private network, or keeps the service busy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from fanout.orchestrator.configuration.notification_settings import NotificationSettings
from fanout.orchestrator.server.notifications.receivers import (
    NotSent,
    PinnedHttp,
    ReceiverAnswer,
    Receivers,
    UrlRefused,
)
from tests.https_host import PrivateAuthority
from tests.receiver import answer, receiver

PUBLIC = "93.184.216.34"


class Names:
    """A name server that gives a list of addresses for each question, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        del port
        self.asked.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not found:
            raise OSError("not found")
        return found


@pytest.mark.parametrize(
    "url",
    [
        "",
        "receiver.example/in",
        "//receiver.example/",
        "ftp://receiver.example/",
        "file:///etc/passwd",
        "gopher://receiver.example/",
        "http://receiver.example/",  # no TLS
        "HTTP://receiver.example/",
        "https://",
        "https:///path",
        "https://user@receiver.example/",
        "https://user:word@receiver.example/",
        "https://receiver.example@10.0.0.1/",
        "https://receiver.example\\@10.0.0.1/",
        "https://receiver.example/#at",
        "https://receiver.example/a b",
        "https://receiver.example/\r\nHost: inside",
        "https://receiver.example/\x00",
        "https://rec\u00e9iver.example/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://receiver.example:22/",
        "https://receiver.example:6379/",
        "https://receiver.example:0/",
        "https://receiver.example:99999/",
        "https://receiver.example:443x/",
        "https://receiver.example./",
        "https://receiver..example/",
        "https://%6cocalhost/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://168.63.129.16/",
        "https://0.0.0.0/",
        "https://224.0.0.1/",
        "https://[::1]/",
        "https://[::]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fd00::1]/",
        "https://[ff02::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b:1::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:7f00:1::]/",
        "https://[::1/",
        "https://receiver.example/" + "a" * 2100,
    ],
)
async def test_a_hostile_url_is_refused_before_any_name_is_looked_up(url: str) -> None:
    names = Names([PUBLIC])
    with pytest.raises(UrlRefused):
        await Receivers(resolve=names).check(url)
    assert names.asked == []


@pytest.mark.parametrize(
    "addresses",
    [
        [], ["10.0.0.1"], ["127.0.0.1"], ["::1"], ["169.254.169.254"], ["100.100.100.200"],
        [PUBLIC, "192.168.1.1"], ["::ffff:10.0.0.1"], ["fe80::1%eth0"], ["64:ff9b::a00:1"],
        ["2002:a00:1::"], ["224.0.0.5"], ["not an address"],
    ],
)  # fmt: skip
async def test_a_name_with_any_address_that_is_not_public_is_refused(addresses: list[str]) -> None:
    with pytest.raises(UrlRefused, match="not found on the public internet"):
        await Receivers(resolve=Names(addresses)).check("https://inside.example/")


@pytest.mark.parametrize(
    "url",
    [
        "https://receiver.example",
        "https://receiver.example:8443/in?x=1",
        "https://RECEIVER.example/",
        "https://xn--rciver-bva.example/",
    ],
)
async def test_a_receiver_on_the_public_internet_is_accepted(url: str) -> None:
    names = Names([PUBLIC, "2606:4700::1111"])

    await Receivers(resolve=names).check(url)

    assert names.asked, "where it is was looked up"


async def test_only_what_the_operator_names_may_be_private_and_without_tls() -> None:
    names = Names(["10.0.0.1"])
    allowed = ("hooks.inside", "exact.inside:8080", "[::1]:80", "fd00::1")
    settings = NotificationSettings.model_validate({"allowed_hosts": allowed})
    receivers = Receivers(settings.allowed_hosts, names)
    for url in (
        "http://[::1]/",
        "http://[fd00::1]:9/",
        "http://hooks.inside:1234/",
        "https://HOOKS.inside/",
        "http://exact.inside:8080/",
    ):
        await receivers.check(url)
    for url in (
        "http://[::1]:81/",
        "http://exact.inside/",
        "https://exact.inside/",
        "http://below.hooks.inside/",
    ):
        with pytest.raises(UrlRefused):
            await receivers.check(url)


@pytest.mark.parametrize(
    "entry", ["https://a.inside", "a b", "a/b", "*.inside", "", "0x7f.1", "a:b"]
)
def test_a_host_that_could_not_match_is_no_setting(entry: str) -> None:
    with pytest.raises(ValidationError, match="host or host:port"):
        NotificationSettings.model_validate({"allowed_hosts": [entry]})


async def test_a_name_that_moves_into_the_private_network_after_the_check_is_not_reached() -> None:
    async with receiver() as inside:
        receivers = Receivers(resolve=Names([PUBLIC], ["127.0.0.1"]))
        url = f"https://rebind.example:{8443}/in"
        await receivers.check(url)
        http = PinnedHttp(receivers)
        with pytest.raises(UrlRefused, match="not found on the public internet"):
            await http.post(url, {}, b"{}")
        await http.close()
    assert inside.requests == []


async def test_the_connection_goes_to_the_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[str] = []

    async def connect(_: object, host: str, *__: object) -> object:
        connected.append(host)
        raise OSError("no network in a test")

    monkeypatch.setattr("httpcore2.AnyIOBackend.connect_tcp", connect)
    names = Names([PUBLIC], ["127.0.0.1"])
    http = PinnedHttp(Receivers(resolve=names))
    with pytest.raises(OSError, match="no network"):
        await http.post("https://rebind.example/", {}, b"{}")
    assert (names.asked, connected) == (["rebind.example"], [PUBLIC])


async def test_tls_asks_for_the_name_and_trusts_only_the_authorities(tmp_path: Path) -> None:
    authority = await asyncio.to_thread(PrivateAuthority, tmp_path)
    names = Names(["127.0.0.1"])
    receivers = Receivers(["right.example", "wrong.example"], names)
    async with receiver(tls=authority.context("right.example")) as host:
        trusting = PinnedHttp(receivers, ca_file=authority.ca_file)
        right = await trusting.post(host.url("right.example", "https"), {}, b"{}")
        with pytest.raises(NotSent, match="certificate"):
            await trusting.post(host.url("wrong.example", "https"), {}, b"{}")
        with pytest.raises(NotSent, match="certificate"):
            await PinnedHttp(receivers).post(host.url("right.example", "https"), {}, b"{}")
    assert right == ReceiverAnswer(204)
    (request,) = host.requests
    assert request.line == "POST /hook?a=b HTTP/1.1"
    assert request.headers["host"] == f"right.example:{host.port}"


HERE = Receivers(["127.0.0.1"])


async def test_a_redirect_is_not_followed_and_a_proxy_of_the_environment_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with receiver() as inside, receiver(answer(302, f"Location: {inside.url()}")) as host:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, inside.url())
        http = PinnedHttp(HERE)
        assert (await http.post(host.url(), {}, b"{}")).status == 302
    assert inside.requests == []


async def test_a_proxy_of_the_settings_looks_names_up_and_is_asked_for_no_private_address() -> None:
    names = Names([])
    async with receiver() as proxy:
        url = f"http://user:pass%20word@127.0.0.1:{proxy.port}"
        receivers = Receivers(["a.inside"], names, by_proxy=True)
        await receivers.check("https://elsewhere.example/")
        http = PinnedHttp(receivers, proxy=url)
        assert await http.post("http://a.inside/in", {}, b"{}") == ReceiverAnswer(204)
        with pytest.raises(UrlRefused):
            await http.post("https://10.0.0.1/", {}, b"{}")
    (request,) = proxy.requests
    assert request.line == "POST http://a.inside:80/in HTTP/1.1"
    assert request.headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
    assert names.asked == []


async def test_of_an_answer_only_the_status_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanout.orchestrator.server.notifications.receivers.REQUEST_SECONDS", 1.0)
    flood = b"HTTP/1.1 500 X\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 1_000_000
    endless_head = b"HTTP/1.1 200 X\r\nX: " + b"x" * 1_000_000
    odd = (b"", b"HTTP/1.1 abc\r\n\r\n", endless_head, b"\x00" * 100)
    http = PinnedHttp(HERE)
    async with receiver(flood, *odd) as host:
        assert (await http.post(host.url(), {}, b"{}")).status == 500
        for _ in odd:
            with pytest.raises(NotSent) as failure:
                await http.post(host.url(), {}, b"{}")
            assert "x" * 20 not in str(failure.value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", None), ("-5", None), ("", None)],
)
async def test_retry_after_is_read_in_both_forms(value: str, seconds: float | None) -> None:
    async with receiver(answer(503, f"Retry-After: {value}")) as host:
        assert (await PinnedHttp(HERE).post(host.url(), {}, b"{}")).retry_after == seconds
