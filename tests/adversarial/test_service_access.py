"""Strangers, web sites and former users call the service; somebody reads a dump of its Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from starlette.types import Message

from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.server.access import authentication
from fanout.orchestrator.server.access.authentication import AuthenticationMiddleware
from fanout.orchestrator.server.access.limits import FailedAttempts, TooManyAttempts
from tests.site import HERE, Site

STATIC = "0123456789abcdef0123456789abcdef"
SAME = {"Sec-Fetch-Site": "same-origin"}


async def logged_in(here: Site) -> str:
    """Log in as the operator and return the CSRF token."""
    await here.http.get(await here.access.login_link(HERE))
    return str((await here.http.get("/session", headers=SAME)).json()["csrf_token"])


async def everything(redis: FakeAsyncRedis) -> str:
    """All that Redis holds, as a dump shows it."""
    texts: list[Any] = []
    for key in await redis.keys("*"):
        kind = await redis.type(key)
        read = {
            "hash": redis.hgetall,
            "string": redis.get,
            "stream": redis.xrange,
            "zset": lambda name: redis.zrange(name, 0, -1),
        }
        texts += [key, await read[kind](key)]
    return str(texts)


async def test_a_dump_of_redis_opens_nothing(site, redis):
    here = site(keys={"ci": {"key": STATIC, "scopes": ["read"]}})
    key = await here.key("ann")
    used = await here.access.login_link(HERE)
    link = await here.access.login_link(HERE)
    await here.http.get(used)
    await here.http.get("/v1/jobs", headers={"X-API-Key": STATIC})
    await here.http.post("/login", data={"key": key}, headers=SAME)
    await here.http.post("/login", data={"key": f"{key[:-1]}!"}, headers=SAME)

    dump = await everything(redis)

    secrets = [key.rpartition("_")[2], STATIC, *(one.partition("=")[2] for one in (used, link))]
    secrets += [cookie.value for cookie in here.http.cookies.jar]
    assert len(secrets) == 5
    assert [secret for secret in secrets if secret in dump] == []
    assert "ann" in dump


async def test_nothing_but_one_whole_key_in_one_header_is_a_key(site):
    here = site(failed_logins_per_minute=1000)
    key = await here.key("ann")
    _, key_id, secret = key.split("_")
    wrong = [
        [("Authorization", f"Basic {key}")],
        [("Authorization", key)],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Bearer {key} {key}")],
        [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")],
        [("Authorization", f"Bearer {key}"), ("X-API-Key", key)],
        [("X-API-Key", key_id)],
        [("X-API-Key", f"fo_{key_id}_")],
        [("X-API-Key", f"fo_{key_id}_{secret[:-1]}")],
        [("X-API-Key", f"fo_*_{secret}")],
        [("X-API-Key", f"{key}x")],
        [("X-API-Key", b"\xc3\xa9" * 40)],
        [("X-API-Key", "x" * 60_000)],
    ]

    answers = [await here.http.get("/v1/jobs", headers=headers) for headers in wrong]
    by_query = await here.http.get("/v1/jobs", params={"key": key, "api_key": key})

    assert [one.status_code for one in (*answers, by_query)] == [401] * 14
    assert secret not in "".join(one.text for one in answers)


async def test_whoever_guesses_has_to_wait_and_nobody_else_behind_the_same_address(site):
    here = site(failed_logins_per_minute=5)
    key = await here.key("ann")
    stranger = await here.key("bob")
    good = {"X-API-Key": key}
    await here.http.get("/v1/jobs", headers=good)

    guesses = [
        await here.http.get("/v1/jobs", headers={"X-API-Key": f"{key[:-1]}{one}"})
        for one in "!?.,;:-_"
    ]
    known = await here.http.get("/v1/jobs", headers=good)
    unknown = await here.http.get("/v1/jobs", headers={"X-API-Key": stranger})
    elsewhere = site(failed_logins_per_minute=5, address="192.0.2.7")

    assert [one.status_code for one in guesses] == [401] * 5 + [429] * 3
    assert 1 <= int(guesses[-1].headers["retry-after"]) <= 13
    assert (known.status_code, unknown.status_code) == (200, 429)
    assert (await elsewhere.http.get("/v1/jobs", headers=good)).status_code == 200


def test_addresses_of_one_network_share_its_attempts_and_time_gives_them_back():
    now = 0.0
    attempts = FailedAttempts(2, lambda: now)
    for last in ("1", "2"):
        attempts.failed(f"2001:db8::{last}", "x")

    with pytest.raises(TooManyAttempts):
        attempts.check("2001:db8::ffff", "y")
    attempts.check("2001:db8:0:1::1", "y")
    attempts.check("::ffff:192.0.2.1", "y")
    now = 31.0
    attempts.check("2001:db8::ffff", "y")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil", "", "0x7f.1"],
)
async def test_a_name_that_leads_to_this_machine_is_not_ours(host, site):
    here = site()
    headers = {"Host": host, "X-API-Key": await here.key()}

    answers = [await here.http.get(path, headers=headers) for path in ("/v1/jobs", "/healthz")]

    assert [one.status_code for one in answers] == [421, 421]


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1", "[::1]:8642", "me.test"])
async def test_our_own_names_are_answered(host, site):
    here = site(trusted_hosts=["me.test"])

    assert (await here.http.get("/healthz", headers={"Host": host})).status_code == 200


async def test_another_site_can_do_nothing_with_a_browsers_session(site):
    here = site()
    token = await logged_in(here)
    csrf = {"X-CSRF-Token": token}
    changing = {
        "no token": SAME,
        "wrong token": SAME | {"X-CSRF-Token": token[::-1]},
        "token as text of others": SAME | {"X-CSRF-Token": b"\xc3\xa9"},
        "cross-site": csrf | {"Sec-Fetch-Site": "cross-site"},
        "another port": csrf | {"Sec-Fetch-Site": "same-site"},
        "another origin": csrf | {"Origin": "http://127.0.0.1:3000"},
        "no origin": csrf | {"Origin": "null"},
        "navigation": csrf | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    }
    reading = {
        "fetch": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        "origin": {"Origin": "https://evil.example"},
    }

    refused = [await here.http.post("/v1/jobs", headers=one) for one in changing.values()]
    refused += [await here.http.get("/v1/jobs", headers=one) for one in reading.values()]
    allowed = await here.http.post("/v1/jobs", headers=csrf | {"Origin": HERE})

    assert [one.status_code for one in refused] == [403] * 10
    assert allowed.status_code == 200
    assert not any(name.startswith("access-control") for one in refused for name in one.headers)


async def test_cors_is_closed_and_where_it_is_open_it_carries_no_cookie(site):
    asks = {"Origin": "https://app.test", "Access-Control-Request-Method": "POST"}
    closed = await site().http.options("/v1/jobs", headers=asks)
    there = site(allowed_origins=["https://app.test"])
    opened = await there.http.options("/v1/jobs", headers=asks)
    other = await there.http.options("/v1/jobs", headers=asks | {"Origin": "https://evil.test"})
    await logged_in(there)
    with_cookie = await there.http.get("/v1/jobs", headers={"Origin": "https://app.test"})

    assert closed.status_code == 401
    assert "access-control-allow-origin" not in closed.headers
    assert opened.headers["access-control-allow-origin"] == "https://app.test"
    assert "access-control-allow-credentials" not in opened.headers
    assert "access-control-allow-origin" not in other.headers
    assert with_cookie.status_code == 403


async def test_a_cookie_that_another_site_has_set_beside_ours_is_no_session(site):
    here = site()
    token = await logged_in(here)
    mine = here.http.cookies["fanout_session"]
    here.http.cookies.clear()
    cookies = [
        f"fanout_session={mine}; fanout_session=planted",
        f"fanout_session=planted; fanout_session={mine}",
        "fanout_session=",
        f"fanout_session={'x' * 5000}",
        f"FANOUT_SESSION={mine}",
    ]

    answers = [
        await here.http.post("/v1/jobs", headers={"Cookie": one, "X-CSRF-Token": token, **SAME})
        for one in cookies
    ]

    assert [one.status_code for one in answers] == [401] * 5


async def test_one_who_logs_others_in_or_leads_them_away_fails(site):
    here = site()
    key = await here.key("eve")

    from_elsewhere = await here.http.post(
        "/login", data={"key": key}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    as_json = await here.http.post("/login", json={"key": key}, headers=SAME)
    away = [
        await here.http.post("/login", data={"key": key, "next": path}, headers=SAME)
        for path in ("//evil.test", "/\\evil.test", "https://evil.test", "/a\r\nX: y", "evil", "")
    ]
    shown = await here.http.get("/login", params={"next": '/"><script>alert(1)</script>'})
    long = await here.http.post("/login", data={"key": "x" * 9000}, headers=SAME)

    assert (from_elsewhere.status_code, as_json.status_code, long.status_code) == (403, 403, 403)
    assert {one.headers["location"] for one in away} == {"/"}
    assert "<script>" not in shown.text
    assert "script-src" not in shown.headers["content-security-policy"]


async def test_a_session_ends_when_its_browser_logs_in_again(site):
    here = site()
    await logged_in(here)
    earlier = here.http.cookies["fanout_session"]

    await logged_in(here)
    later = here.http.cookies["fanout_session"]
    here.http.cookies.clear()
    stolen = await here.http.get("/v1/jobs", headers={"Cookie": f"fanout_session={earlier}"})

    assert later != earlier
    assert stolen.status_code == 401


async def test_of_two_who_open_a_link_at_once_one_is_logged_in(site):
    here = site()
    link = await here.access.login_link(HERE)

    answers = await asyncio.gather(*[here.http.get(link) for _ in range(5)])

    assert sorted(one.status_code for one in answers) == [303, 403, 403, 403, 403]


async def test_a_stream_ends_when_its_key_is_revoked(site, monkeypatch):
    monkeypatch.setattr(authentication, "CHECK_SECONDS", 0.0)
    here = site()
    key = await here.key("ann")
    sent: list[Message] = []

    async def streaming(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(4):
            if number == 2:
                await here.access.stores.keys.revoke("ann")
            body = b"%d" % number
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def keep(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    access = here.access
    guard = AuthenticationMiddleware(
        streaming, access.authenticator, access.sessions, access.settings
    )
    await guard(
        {
            "type": "http",
            "method": "GET",
            "path": "/v1/changes",
            "headers": [(b"x-api-key", key.encode())],
            "client": ("127.0.0.1", 1),
        },
        receive,
        keep,
    )

    assert [one.get("body") for one in sent] == [None, b"0", b"1", b""]
    assert sent[-1]["more_body"] is False


async def test_no_audit_record_and_no_answer_holds_a_key(site):
    here = site()
    key = await here.key("ann")

    await here.http.post("/login", data={"key": key}, headers=SAME)
    refused = await here.http.post("/login", data={"key": key.swapcase()}, headers=SAME)
    page = await here.access.stores.audit.page()

    assert [(one.action, one.outcome) for one in page.items] == [
        ("login", "wrong key"),
        ("login", "done"),
    ]
    assert {one.address for one in page.items} == {"127.0.0.1"}
    texts = f"{page.model_dump_json()}{refused.text}"
    assert key.rpartition("_")[2] not in texts
    assert key.swapcase() not in texts


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALLOWED_ORIGINS", '["*"]', "https://"),
        ("ALLOWED_ORIGINS", '["null"]', "https://"),
        ("TRUSTED_HOSTS", '["*"]', "wildcard"),
        ("KEYS", '{"ci": {"key": "short", "scopes": ["read"]}}', "32"),
        ("KEYS", '{"ci": {"key": "0123456789abcdef0123456789abcdef", "scopes": []}}', "SCOPES"),
        ("KEYS", '{"*": {"key": "0123456789abcdef0123456789abcdef", "scopes": ["read"]}}', "KEYS"),
    ],
)
def test_no_setting_opens_the_service_to_everybody(name, value, words, monkeypatch):
    monkeypatch.setenv(f"FANOUT_API__{name}", value)

    with pytest.raises(InvalidSetting, match=words) as refused:
        load_settings()

    assert "0123456789abcdef" not in str(refused.value)
