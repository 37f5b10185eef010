"""Who may do what, at real servers: `fanout keys`, `fanout serve`, a browser's session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx2
import pytest

from fanout.orchestrator.server.access.authentication import CHECK_SECONDS
from tests.fixtures import place_fixture
from tests.forked import ForkedProcess
from tests.integration.scripts import conversation, says
from tests.issuer import AUDIENCE, running_issuer
from tests.served import ServerProcess, make_key
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SCRIPT = conversation("", says("done"))
NEVER = "01zzzzzzzzzzzzzzzzzzzzzzzz"


place = place_fixture(SCRIPT, scope="module")


@pytest.fixture(scope="module")
def servers(place: Installation) -> Iterator[list[ServerProcess]]:
    started = [ServerProcess(place, name) for name in ("one", "two")]
    for server in started:
        server.start()
    yield started
    for server in started:
        server.stop()


def fanout(place: Installation, *arguments: str, **settings: str) -> tuple[int, str]:
    """The exit code and the output of a command."""
    log = place.folder / "command.log"
    with log.open("wb") as output:
        child = ForkedProcess(
            "orchestrator", arguments, place.environment | settings, stdout=output, stderr=output
        )
        code = child.wait(timeout=60)
    return code, log.read_text()


async def read_audit(http: httpx2.AsyncClient) -> list[tuple[str, str, str]]:
    items = (await http.get("/v1/audit")).json()["items"]
    return [
        (one["name"], one["action"], one["outcome"])
        for one in items
        if one["name"] in ("submit", "read", "approve")
    ]


async def test_a_revoked_key_is_refused_by_all_servers_at_once_and_its_streams_end(
    place: Installation, servers: list[ServerProcess]
):
    key = await make_key(place, "ann", "submit", "read")
    one, two = (server.client(key) for server in servers)
    async with one, two:
        job_id = (await one.post("/v1/jobs", json={"description": "x"})).json()["id"]
        assert (await two.get(f"/v1/jobs/{job_id}")).status_code == 200

        async with two.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            lines = response.aiter_lines()
            assert response.status_code == 200
            await anext(lines)
            code, _ = await asyncio.to_thread(fanout, place, "keys", "revoke", "ann")
            refused = [await http.get(f"/v1/jobs/{job_id}") for http in (one, two)]
            await asyncio.sleep(CHECK_SECONDS)
            async with servers[0].client(await make_key(place, "bob", owner="ann")) as other:
                told = await other.post(f"/v1/jobs/{job_id}:cancel")
            rest = [line async for line in lines]  # ends without what has happened since

    assert (code, told.status_code) == (0, 202)
    assert "cancelled" not in "".join(rest)
    assert [each.status_code for each in refused] == [401, 401]


async def test_each_call_that_changes_something_leaves_one_record_and_scopes_are_kept(
    place: Installation, servers: list[ServerProcess]
):
    keys = {name: await make_key(place, name, name) for name in ("submit", "read", "approve")}
    admin = servers[1].client(await make_key(place, "root", "admin", owner="*"))
    calls = [
        ("POST", "/v1/jobs", {"description": "x"}),
        ("POST", f"/v1/jobs/{NEVER}:cancel", None),
        ("POST", f"/v1/jobs/{NEVER}:retry", None),
        ("POST", f"/v1/jobs/{NEVER}:tell", {"text": "x"}),
        ("POST", "/v1/approvals/ap_0", {"decision": "approve"}),
        ("GET", "/v1/jobs", None),
        ("GET", "/v1/approvals", None),
        ("GET", "/v1/audit", None),
    ]
    statuses = {}
    for name, key in keys.items():
        async with servers[0].client(key) as http:
            answers = [await http.request(method, path, json=body) for method, path, body in calls]
            statuses[name] = [one.status_code for one in answers]

    async with admin:
        records = await read_audit(admin)

    assert statuses == {
        "submit": [201, 404, 404, 404, 403, 403, 403, 403],
        "read": [403, 403, 403, 403, 403, 200, 200, 403],
        "approve": [403, 403, 403, 403, 404, 403, 403, 403],
    }
    assert len(records) == 15
    assert sorted(set(records)) == sorted(
        ("submit", "job.submit", "done")
        if (name, action) == ("submit", "job.submit")
        else (name, action, "not found" if own == name else "not allowed")
        for name in keys
        for action, own in (
            ("job.submit", "submit"),
            ("job.cancel", "submit"),
            ("job.retry", "submit"),
            ("job.tell", "submit"),
            ("approval.approve", "approve"),
        )
    )


async def test_the_link_of_a_server_logs_one_browser_in_and_the_log_has_no_key(
    place: Installation, servers: list[ServerProcess]
):
    key = await make_key(place, "reader", "read")
    found = re.search(r"http://\S+/login\?token=\S+", servers[0].log.read_text())
    assert found
    async with httpx2.AsyncClient(base_url=servers[0].url) as browser:
        page = await browser.get("/docs", headers={"Accept": "text/html"})
        opened = await browser.get(found[0], headers={"Sec-Fetch-Site": "none"})
        who = (await browser.get("/session")).json()
        forged = await browser.post("/v1/jobs", json={"description": "x"})
        own = {"X-CSRF-Token": who["csrf_token"], "Sec-Fetch-Site": "same-origin"}
        posted = await browser.post("/v1/jobs", json={"description": "x"}, headers=own)
        again = await browser.get(found[0])
        elsewhere = await browser.get("/healthz", headers={"Host": "evil.example"})
        nowhere = [await browser.get(path) for path in ("/logout", "/v1/nothing")]
    async with httpx2.AsyncClient(base_url=servers[0].url) as stranger:
        closed = [
            await stranger.get(path)
            for path in ("/openapi.json", "/metrics", "/v1/jobs", "/v1/nothing", "/mcp", "/a2a")
        ]
        around = [
            await stranger.get(path)
            for path in (
                "/static/..%2fv1/jobs",
                "/static/%2e%2e/v1/jobs",
                "//v1/jobs",
                "/login/..%2fv1",
            )
        ]
        await stranger.get("/v1/jobs", headers={"X-API-Key": key})

    assert (page.status_code, page.headers["location"]) == (303, "/login?next=/docs")
    assert (opened.status_code, again.status_code) == (303, 403)
    assert (who["owner"], who["tenant"]) == ("*", "*")
    assert (forged.status_code, posted.status_code) == (403, 201)
    assert elsewhere.status_code == 421
    assert [one.status_code for one in nowhere] == [405, 404]
    assert [one.status_code for one in closed] == [401] * 6
    assert {one.status_code for one in around} <= {401, 404}
    assert key not in servers[0].log.read_text()


def test_a_public_address_is_refused_without_a_key_with_exit_code_4(place: Installation):
    public = ("serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 - what is refused
    code, text = fanout(place, *public, FANOUT_REDIS_PREFIX="without-keys")

    assert code == 4
    assert "fanout keys create" in text


async def test_a_token_of_an_issuer_submits_jobs_of_its_own_subject(place: Installation):
    with running_issuer() as issuer:
        settings = {"ISSUER": issuer.url, "AUDIENCE": AUDIENCE, "TENANT_CLAIM": "org"}
        server = ServerProcess(
            place, settings={f"FANOUT_API__OIDC__{name}": value for name, value in settings.items()}
        )
        server.start()
        key = server.client(await make_key(place, "key", "read", owner="ann", tenant="blue"))
        token = server.client(issuer.token(org="blue"))
        other = server.client(issuer.token(org="green"))
        async with token, other, key:
            job_id = (await token.post("/v1/jobs", json={"description": "x"})).json()["id"]
            seen = [await http.get(f"/v1/jobs/{job_id}") for http in (token, key, other)]
        server.stop()

    assert [one.status_code for one in seen] == [200, 200, 404]
    assert (seen[0].json()["owner"], seen[0].json()["tenant"]) == ("ann", "blue")
