"""The routes of the page: its shell and its static files, which hold no data of anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

FILES = Path(__file__).with_name("static")
STATIC = "/static"
CONTENT_SECURITY_POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "require-trusted-types-for 'script'",  # no script can turn text into markup at all
    "trusted-types 'none'",
))  # fmt: skip
"""Only our own files run: what a model has written stays text even if the page had a fault."""
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # A browser asks each time whether its copy is the newest (ETag): no release mixes with another.
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class _Files(StaticFiles):
    def file_response(self, *given: object, **options: object) -> Response:
        response = super().file_response(*given, **options)  # type: ignore[arg-type]
        return _with(response, HEADERS)


def page_routes() -> Sequence[BaseRoute]:
    """Return the routes of the page: `/` and `/static/…`; both need no caller."""
    return [
        Route("/", _shell, methods=["GET"], include_in_schema=False),
        Mount(STATIC, _Files(directory=FILES), name="static"),
    ]


async def _shell(_: Request) -> Response:
    return _with(FileResponse(FILES / "index.html"), HEADERS)


def _with(response: Response, headers: Mapping[str, str]) -> Response:
    response.headers.update(headers)
    return response
