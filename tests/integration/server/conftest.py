"""A server of the module's place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.served import ServerProcess
from tests.services import Installation


@pytest.fixture
def server(place: Installation) -> Iterator[ServerProcess]:
    process = ServerProcess(place)
    process.start()
    yield process
    process.stop()
