"""Servers that speak the interfaces of model services."""

from __future__ import annotations

import pytest

from tests.integration.models.providers import Serve, served


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return served(monkeypatch)
