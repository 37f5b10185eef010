from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adversarial.escape_lab import Lab, opened_lab
from tests.conftest import docker_answers, missing
from tests.docker.conftest import engine, make_provider, provider, snapshots
from tests.unit.server.conftest import site

__all__ = ["engine", "make_provider", "provider", "site", "snapshots"]


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if not docker_answers():
        missing("No Docker engine answers.")
    with opened_lab(tmp_path_factory.mktemp("snapshots")) as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """A sandbox to escape from; afterwards it and its neighbour must be well."""
    yield shared_lab
    shared_lab.check_all_is_well()
