"""Logging in with a browser: by a one-time link, or with a key; logging out."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ...jobs.failures import LedgerUnavailable
from .assembly import ServerAccess
from .authentication import check_own_page, client_address
from .callers import Caller, NotAllowed, NotAuthenticated
from .limits import TooManyAttempts
from .sessions import LOGIN_PATH, csrf_token, is_operator

MAX_FORM_BYTES = 8192
"""The largest form: a key or a token, and the page after the login."""
LINK_USED = "This link was used already or is too old: get a new one, or log in with a key."
HOME = "/"

_LOCAL_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,500}")
"""The form of a path of this site that no browser can interpret as another site."""
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:26rem;margin:15vh auto;padding:0 1rem}
:root{color-scheme:light dark}
label,input,button{display:block;width:100%;box-sizing:border-box;font:inherit}
input,button{margin:.5rem 0 1rem;padding:.6rem}
[role=alert]{border-left:4px solid #c33;padding-left:.7rem}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",  # with no-referrer the form would be sent with Origin: null
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fanout: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head>
<body><main><h1>fanout</h1>{notice}
<form method="post" action="/login"><input type="hidden" name="next" value="{next}">{fields}
<button>Log in</button></form></main></body></html>
"""
_KEY_FIELD = """<label for="key">Key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<p>A key is made by <code>fanout keys create NAME --scope read</code>.</p>"""


class Login:
    """The routes of browser sessions.

    Args:
        access: The callers of this server.
        has_folders: Whether the operator may choose folders of this machine.
    """

    def __init__(self, access: ServerAccess, *, has_folders: bool = False) -> None:
        self._access = access
        self._has_folders = has_folders

    def routes(self) -> list[Route]:
        """Return `/login`, which is public, and `/logout` and `/session`, which need a session."""
        return [
            Route(LOGIN_PATH, self._show, methods=["GET"]),
            Route(LOGIN_PATH, self._enter, methods=["POST"]),
            Route("/logout", self._leave, methods=["POST"]),
            Route("/session", self._who, methods=["GET"]),
        ]

    async def _show(self, request: Request) -> Response:
        """Show the form; a link that a person opened logs in at once.

        If another site or a prefetching program opened it, only a button is shown.
        """
        token, following = (
            request.query_params.get("token"),
            _local(request.query_params.get("next")),
        )
        if token is None:
            return _page(following)
        is_opened = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if request.method != "GET" or not is_opened or "sec-purpose" in request.headers:
            return _page(following, token=token)
        return await self._by_link(request, token, following)

    async def _enter(self, request: Request) -> Response:
        """Log in with the form's key or link."""
        try:
            check_own_page(request.scope, self._access.settings.public_url)
            form = await _form(request)
        except NotAllowed as refusal:
            return _page(HOME, notice=str(refusal), status=403)
        following = _local(form.get("next"))
        if token := form.get("token"):
            return await self._by_link(request, token, following)
        return await self._by_key(request, form.get("key", "").strip(), following)

    async def _by_key(self, request: Request, key: str, following: str) -> Response:
        access, address = self._access, client_address(request.scope)
        try:
            caller = await access.authenticator.find_caller(key, address, tokens=False)
        except NotAuthenticated as refusal:
            await access.audit.record(None, "login", outcome="wrong key")
            return _page(following, notice=str(refusal), status=401)
        except TooManyAttempts as refusal:
            return _too_many(following, refusal)
        except LedgerUnavailable as failure:
            return _page(following, notice=str(failure), status=503)
        return await self._entered(request, caller, await access.sessions.begin(caller), following)

    async def _by_link(self, request: Request, token: str, following: str) -> Response:
        access, address = self._access, client_address(request.scope)
        try:
            access.attempts.check(address, token)
            begun = await access.sessions.begin_by_link(token)
        except TooManyAttempts as refusal:
            return _too_many(following, refusal)
        except LedgerUnavailable as failure:
            return _page(following, notice=str(failure), status=503)
        if begun is None:
            access.attempts.failed(address, token)
            await access.audit.record(None, "login", outcome="wrong link")
            return _page(following, notice=LINK_USED, status=403)
        return await self._entered(request, *begun, following)

    async def _entered(
        self, request: Request, caller: Caller, cookie: str, following: str
    ) -> Response:
        """Answer with the new session's cookie; the browser's earlier session ends."""
        earlier = self._access.sessions.id_of(request.headers.getlist("cookie"))
        if earlier is not None:
            await self._access.sessions.end(earlier)
        await self._access.audit.record(caller, "login")
        headers = {"Set-Cookie": cookie, "Cache-Control": "no-store"}
        return RedirectResponse(following, status_code=HTTPStatus.SEE_OTHER, headers=headers)

    async def _leave(self, request: Request) -> Response:
        session_id = getattr(request.state, "session_id", None)
        if session_id is None:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        cookie = await self._access.sessions.end(session_id)
        await self._access.audit.record(request.state.caller, "logout")
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Set-Cookie": cookie})

    async def _who(self, request: Request) -> Response:
        """Return the logged-in caller, and the CSRF token that a page sends with each change."""
        caller: Caller = request.state.caller
        session_id = getattr(request.state, "session_id", None)
        return JSONResponse(
            {
                "name": caller.name,
                "owner": caller.owner,
                "tenant": caller.tenant,
                "scopes": sorted(caller.scopes),
                "csrf_token": None if session_id is None else csrf_token(session_id),
                "flower_url": self._access.settings.flower_url,
                "trace_url": self._access.settings.trace_url,
                "folders": self._has_folders and is_operator(caller, request.state),
            },
            headers={"Cache-Control": "no-store"},
        )


def _page(
    following: str,
    *,
    token: str | None = None,
    notice: str = "",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    fields = _KEY_FIELD
    if token is not None:
        fields = f'<input type="hidden" name="token" value="{html.escape(token)}">'
    shown = f'<p role="alert">{html.escape(notice)}</p>' if notice else ""
    content = _PAGE.format(style=_STYLE, notice=shown, next=html.escape(following), fields=fields)
    return HTMLResponse(content, status, {**PAGE_HEADERS, **(headers or {})})


def _too_many(following: str, refusal: TooManyAttempts) -> Response:
    wait = {"Retry-After": f"{refusal.retry_after_seconds + 0.5:.0f}"}
    return _page(following, notice=str(refusal), status=429, headers=wait)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        NotAllowed: It is not the login form: too long, or of another kind.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MAX_FORM_BYTES:
            break
    if kind != "application/x-www-form-urlencoded" or len(content) > MAX_FORM_BYTES:
        raise NotAllowed("This is not the login form: open /login.")
    fields = parse_qs(content.decode("latin-1"))
    return {name: values[0] for name, values in fields.items()}


def _local(path: str | None) -> str:
    return path if path and _LOCAL_PATH.fullmatch(path) else HOME
