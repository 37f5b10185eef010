"""Who is let in: keys, static keys, sessions; and what everybody may see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fanout.orchestrator.configuration.api_settings import ApiSettings, Scope
from fanout.orchestrator.server.access.assembly import ServerAccess
from fanout.orchestrator.server.access.callers import Caller, NotAllowed
from fanout.orchestrator.server.access.hosts import PublicWithoutKeys

STATIC = "0123456789abcdef0123456789abcdef"


async def test_a_key_is_sent_in_either_header_and_says_who_asks(site):
    here = site()
    key = await here.key("ann", "submit", "read")

    answers = [
        await here.http.get("/v1/jobs", headers=headers)
        for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key})
    ]

    assert [one.json() for one in answers] == [{"name": "ann", "scopes": ["read", "submit"]}] * 2


async def test_without_a_key_only_public_paths_answer_and_the_refusal_says_what_to_send(site):
    here = site()

    refused = await here.http.get("/v1/jobs")

    assert (await here.http.get("/healthz")).status_code == 200
    assert (await here.http.get("/login")).status_code == 200
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert refused.headers["content-type"] == "application/problem+json"
    assert "fanout keys create" in refused.json()["detail"]
    assert (await here.http.get("/healthz/")).status_code == 401


async def test_a_revoked_key_and_an_expired_one_are_refused_at_once(site):
    here = site()
    key, old = await here.key("ann"), await here.key("bob", expires_at=1.0)

    before = await here.http.get("/v1/jobs", headers={"X-API-Key": key})
    await here.access.stores.keys.revoke("ann")
    after = await here.http.get("/v1/jobs", headers={"X-API-Key": key})
    expired = await here.http.get("/v1/jobs", headers={"X-API-Key": old})

    assert [one.status_code for one in (before, after, expired)] == [200, 401, 401]


async def test_a_key_of_the_configuration_needs_no_redis_record(site):
    here = site(keys={"ci": {"key": STATIC, "scopes": ["submit"]}})

    answer = await here.http.get("/v1/jobs", headers={"X-API-Key": STATIC})

    assert answer.json() == {"name": "ci", "scopes": ["submit"]}


async def test_a_browser_is_led_to_the_login_and_a_program_is_not(site):
    here = site()

    page = await here.http.get("/docs", headers={"Accept": "text/html"})
    program = await here.http.get("/v1/jobs", headers={"Accept": "text/html"})

    assert (page.status_code, page.headers["location"]) == (303, "/login?next=/docs")
    assert program.status_code == 401


async def test_a_public_address_is_refused_until_somebody_can_authenticate(site):
    here = site()

    await here.access.check_bind("127.0.0.1")
    with pytest.raises(PublicWithoutKeys, match="fanout keys create"):
        await here.access.check_bind("0.0.0.0")  # noqa: S104 - what is refused
    key_id = (await here.key()).split("_")[1]
    await here.access.check_bind("0.0.0.0")  # noqa: S104 - as above
    await here.access.stores.keys.revoke(key_id)
    with pytest.raises(PublicWithoutKeys):
        await here.access.check_bind("::")
    static = ApiSettings(keys={"ci": {"key": STATIC, "scopes": ["read"]}})
    access = here.access
    await ServerAccess(
        *(static, access.stores, access.authenticator, access.sessions),
        *(access.audit, access.attempts),
    ).check_bind("192.0.2.1")


def test_a_caller_without_a_scope_is_told_which_one():
    caller = Caller("ann", "ann", "default", frozenset({Scope.READ}))

    caller.require(Scope.READ)
    with pytest.raises(NotAllowed, match="submit"):
        caller.require(Scope.SUBMIT)


async def test_the_audit_log_is_read_page_by_page_newest_first_by_its_owner_only(site):
    here = site()
    ann = Caller("ann", "ann", "default", frozenset(Scope), "k1")
    bob = Caller("bob", "bob", "default", frozenset(Scope), "k2")
    everybody = Caller("ops", "*", "default", frozenset(Scope), "k3")
    for number in range(10):
        await here.access.audit.record((ann, bob)[number % 2], "job.cancel", f"job-{number}")
    await here.access.audit.record(None, "login", outcome="wrong key")
    page = here.access.audit.page

    first = await page(ann, limit=3)
    second = await page(ann, first.next_cursor, 3)

    assert [one.target for one in (*first.items, *second.items)] == [
        f"job-{number}" for number in (8, 6, 4, 2, 0)
    ]
    assert (second.next_cursor, first.items[0].credential) == (None, "k1")
    assert len((await page(everybody)).items) == 10
    assert len((await page(replace(everybody, tenant="*"))).items) == 11
    assert (await page(replace(everybody, tenant="other"))).items == []
    with pytest.raises(ValueError, match="cursor"):
        await page(ann, "- +")
    with pytest.raises(NotAllowed, match="admin"):
        await page(replace(ann, scopes=frozenset({Scope.READ})))
