"""`python -m tests.unit.server.openapi` freezes the description of the HTTP interface."""

from __future__ import annotations

import json
from typing import Any, cast
from unittest.mock import MagicMock

from starlette.middleware import Middleware
from starlette.types import ASGIApp

from fanout.orchestrator.server.app import Bounds, create_app
from fanout.orchestrator.server.http.requests import Service
from tests.architecture.sources import REPOSITORY

FROZEN = REPOSITORY / "docs" / "openapi.json"


def described() -> str:
    """The description of the application as its code is now."""
    nothing = cast("Service", MagicMock())  # of which the routes' descriptions need nothing

    def unchanged(app: ASGIApp, **_: Any) -> ASGIApp:
        return app

    document = create_app(nothing, Bounds(1, 1, 1, 1), Middleware(unchanged)).openapi()
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    FROZEN.write_text(described(), encoding="utf-8")
