"""Logging in with a browser, and what its cookie permits."""

from __future__ import annotations

SAME = {"Sec-Fetch-Site": "same-origin"}


async def log_in(here):
    link = await here.access.login_link("http://127.0.0.1:8642")
    opened = await here.http.get(link, headers={"Sec-Fetch-Site": "none"})
    assert opened.status_code == 303
    return link


async def test_a_link_logs_in_once_and_the_session_works_until_the_logout(site):
    here = site()
    link = await log_in(here)
    session = (await here.http.get("/session", headers=SAME)).json()

    again = await here.http.get(link)
    token = {"X-CSRF-Token": session["csrf_token"], **SAME}
    changed = await here.http.post("/v1/jobs", headers=token)
    left = await here.http.post("/logout", headers=token)

    assert again.status_code == 403
    assert "used already" in again.text
    assert (session["owner"], session["tenant"]) == ("*", "*")
    assert set(session["scopes"]) == {"submit", "read", "approve", "admin"}
    assert changed.status_code == 200
    assert left.status_code == 204
    assert (await here.http.get("/session", headers=SAME)).status_code == 401
    assert [(action, outcome) for action, outcome, _ in await here.audited()] == [
        ("logout", "done"),
        ("login", "wrong link"),
        ("login", "done"),
    ]


async def test_the_cookie_is_closed_and_over_https_bound_to_the_host(site):
    here = site()
    link = await here.access.login_link("http://127.0.0.1:8642")
    plain = (await here.http.get(link)).headers["set-cookie"]
    there = site("https://fanout.example", public_url="https://fanout.example")
    link = await there.access.login_link("https://fanout.example")
    secure = (await there.http.get(link)).headers["set-cookie"]

    assert plain.startswith("fanout_session=")
    assert plain.endswith("Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
    assert secure.startswith("__Host-fanout_session=")
    assert secure.endswith("HttpOnly; SameSite=Strict; Secure")


async def test_a_key_is_pasted_into_the_form_and_its_session_ends_with_it(site):
    here = site()
    key = await here.key("ann", "read")

    wrong = await here.http.post("/login", data={"key": "fo_x"}, headers=SAME)
    right = await here.http.post("/login", data={"key": key, "next": "/v1/jobs"}, headers=SAME)
    works = await here.http.get("/v1/jobs", headers=SAME)
    await here.access.stores.keys.revoke("ann")
    ended = await here.http.get("/v1/jobs", headers=SAME)

    assert wrong.status_code == 401
    assert (right.status_code, right.headers["location"]) == (303, "/v1/jobs")
    assert works.json() == {"name": "ann", "scopes": ["read"]}
    assert ended.status_code == 401
    assert ("login", "wrong key", "") in await here.audited()


async def test_a_link_that_a_program_looks_at_first_is_not_used_up(site):
    here = site()
    link = await here.access.login_link("http://127.0.0.1:8642")

    for headers in ({"Sec-Purpose": "prefetch"}, {"Sec-Fetch-Site": "cross-site"}):
        looked = await here.http.get(link, headers=headers)
        assert (looked.status_code, "set-cookie" in looked.headers) == (200, False)
    await here.http.head(link)
    token = link.partition("token=")[2]
    pressed = await here.http.post("/login", data={"token": token}, headers=SAME)

    assert pressed.status_code == 303
