"""Somebody with a forged, stolen or foreign token calls the service."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from tests.issuer import AUDIENCE, Issuer, running_issuer
from tests.site import Site, running_sites

OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def shared_issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def issuer(shared_issuer: Issuer) -> Iterator[Issuer]:
    published = list(shared_issuer.published)
    yield shared_issuer
    shared_issuer.published, shared_issuer.discovery = published, {}
    shared_issuer.answers, shared_issuer.reads = True, 0


@pytest.fixture
async def site(issuer: Issuer) -> AsyncIterator[Callable[..., Site]]:
    async with FakeAsyncRedis(decode_responses=True) as redis, running_sites(redis) as make:

        def with_issuer(**changed: Any) -> Site:
            oidc = {"issuer": issuer.url, "audience": AUDIENCE} | changed
            return make(oidc=oidc, failed_logins_per_minute=1000)

        yield with_issuer


async def asked(site: Site, token: str) -> Any:
    return await site.http.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"})


def unsigned(header: dict[str, Any], claims: dict[str, Any], key: bytes | None = None) -> str:
    """A token as no library makes it."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (header, claims)
    ]
    text = b".".join(parts)
    signature = hmac.new(key, text, hashlib.sha256).digest() if key else b""
    return f"{text.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_a_valid_token_says_who_asks_and_what_is_permitted(site, issuer):
    here = site()

    answer = await asked(here, issuer.token())

    assert answer.json() == {"name": "ann", "scopes": ["read", "submit"]}


async def test_no_forged_or_foreign_token_is_accepted(site, issuer):
    here = site()
    now = int(time.time())
    claims, rs256 = issuer.claims(), {"alg": "RS256", "kid": "r1"}
    stolen = issuer.token().rpartition(".")[2]
    own = {"jku": "http://127.0.0.1:1/keys", "x5u": "http://127.0.0.1:1/x", "kid": "other"}
    public = {"kty": "RSA", "n": "AQAB", "e": "AQAB"}
    attacks = {
        "none": unsigned({"alg": "none"}, claims),
        "None": unsigned({"alg": "nOnE", "kid": "r1"}, claims),
        "hs256 with the public key": unsigned(
            {"alg": "HS256", "kid": "r1"}, claims, issuer.public_pem()
        ),
        "no signature": unsigned(rs256, claims),
        "another token's signature": f"{unsigned(rs256, issuer.claims(sub='eve'))}{stolen}",
        "unknown kid": issuer.token(headers={"kid": "r2"}),
        "kid as a path": issuer.token(headers={"kid": "../../dev/null"}),
        "kid of another kind of key": issuer.token(headers={"kid": "e1"}),
        "own key by jku and x5u": jwt.encode(claims, OTHER_KEY, "RS256", headers=own),
        "own key by jwk": jwt.encode(
            claims, OTHER_KEY, "RS256", headers={"kid": "r1", "jwk": public}
        ),
        "own key under the kid": jwt.encode(claims, OTHER_KEY, "RS256", headers={"kid": "r1"}),
        "not in the list": jwt.encode(claims, issuer.rsa, "RS512", headers={"kid": "r1"}),
        "critical header": issuer.token(headers={"crit": ["x"], "x": 1}),
        "expired": issuer.token(exp=now - 31),
        "without an end": issuer.token(exp=None),
        "not yet": issuer.token(nbf=now + 60),
        "other audience": issuer.token(aud="billing"),
        "no audience": issuer.token(aud=None),
        "other issuer": issuer.token(iss="https://evil.example"),
        "nobody": issuer.token(sub=None),
        "everybody": issuer.token(sub="*"),
        "the operator": issuer.token(sub="Operator"),
        "the system's user": issuer.token(sub="root"),
        "empty": issuer.token(sub=""),
        "a number": issuer.token(sub=7),
        "control characters": issuer.token(sub="ann\n"),
        "deep": f"{'W1tb' * 4000}.e30.x",
        "rubbish": "..",
        "long": f"{'a' * 20_000}.e30.x",
    }

    answers = {name: await asked(here, token) for name, token in attacks.items()}

    assert {name: one.status_code for name, one in answers.items() if one.status_code != 401} == {}
    assert "expired" in answers["expired"].json()["detail"]
    assert "another service" in answers["other audience"].json()["detail"]


async def test_scopes_of_other_services_permit_nothing_here(site, issuer):
    here = site()

    other = await asked(here, issuer.token(scope="admin submit xfanout:admin fanout:root"))
    listed = await asked(here, issuer.token(scope=["fanout:approve", 7]))
    none = await asked(here, issuer.token(scope=None))
    given = await asked(site(default_scopes=["read"]), issuer.token(scope=None))

    scopes = [one.json()["scopes"] for one in (other, listed, none, given)]
    assert scopes == [[], ["approve"], [], ["read"]]


async def test_invented_key_ids_do_not_become_requests_to_the_issuer(site, issuer):
    here = site()

    for number in range(20):
        await asked(here, issuer.token(headers={"kid": f"invented-{number}"}))

    assert issuer.reads == 1


async def test_many_callers_at_once_read_the_keys_once(site, issuer):
    here = site()

    answers = await asyncio.gather(*[asked(here, issuer.token()) for _ in range(10)])

    assert {one.status_code for one in answers} == {200}
    assert issuer.reads == 1


async def test_a_new_key_of_the_issuer_is_found_and_one_that_is_gone_counts_no_more(
    site, issuer, monkeypatch
):
    here = site(keys_seconds=1)
    monkeypatch.setattr("fanout.orchestrator.extras.oidc.REFRESH_SECONDS", 0.0)
    old = issuer.token()
    assert (await asked(here, old)).status_code == 200

    issuer.published = [{**issuer.published[0], "kid": "r9"}]
    new = await asked(here, issuer.token(headers={"kid": "r9"}))
    gone = await asked(here, old)

    assert (new.status_code, gone.status_code) == (200, 401)


async def test_an_issuer_that_does_not_answer_is_no_refusal_and_keys_work_meanwhile(site, issuer):
    here = site()
    issuer.answers = False

    waiting = await asked(here, issuer.token())
    key = await here.key()

    assert waiting.status_code == 503
    assert waiting.headers["retry-after"]
    assert (await asked(here, key)).status_code == 200


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"jwks_uri": "http://evil.example/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
    ],
    ids=str,
)
async def test_keys_are_taken_from_the_issuer_itself_only(discovery, site, issuer):
    issuer.discovery = discovery

    assert (await asked(site(), issuer.token())).status_code == 503
    assert issuer.reads == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ISSUER", "http://login.example", "https"),
        ("ISSUER", "https://login.example", "AUDIENCE"),
        ("ALGORITHMS", '["HS256"]', "RS256"),
        ("ALGORITHMS", '["none"]', "RS256"),
    ],
)
def test_no_setting_weakens_tokens(name, value, words, monkeypatch):
    monkeypatch.setenv(f"FANOUT_API__OIDC__{name}", value)

    with pytest.raises(InvalidSetting, match=words):
        load_settings()
