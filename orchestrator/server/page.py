"""The routes of the page: its shell and its static files, which hold no user data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

FILES = Path(__file__).with_name("static")
STATIC = "/static"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The policy under which only fanout's own files run: a model's text stays text even if the page
had a fault."""
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""The media types, independent of the machine's own table: a browser runs no script of another
type."""
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # A browser asks each time whether its copy is the newest (ETag): no release mixes with another.
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class _Files(StaticFiles):
    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Return a file with the headers of the page."""
        file: Response = FileResponse(
            full_path,
            status_code,
            stat_result=stat_result,
            media_type=MEDIA_TYPES.get(Path(full_path).suffix, "application/octet-stream"),
        )
        if self.is_not_modified(file.headers, Headers(scope=scope)):
            file = NotModifiedResponse(file.headers)
        file.headers.update(HEADERS)
        return file


def page_routes() -> Sequence[BaseRoute]:
    """Return the routes of the page: `/` and `/static/…`; neither needs a caller."""
    return [
        Route("/", _shell, methods=["GET"], include_in_schema=False),
        Mount(STATIC, _Files(directory=FILES, check_dir=False), name="static"),
    ]


async def _shell(_: Request) -> Response:
    return FileResponse(FILES / "index.html", media_type="text/html", headers=HEADERS)
