"""A server that speaks the interfaces of model services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.models.model_server import ModelServer, model_server


@pytest.fixture(scope="module")
def model_service() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server
