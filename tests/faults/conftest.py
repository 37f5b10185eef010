"""Faults are tried on both kinds of sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import BOTH_PROVIDERS, place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation

SCRIPT = (
    conversation(
        "long command",
        shell("echo before > before.txt; echo begun; sleep 600; echo after > after.txt"),
        DONE,
    ),
    conversation(
        "steps",
        shell("echo one >> steps.txt"),
        {**shell("sleep 600; echo two >> steps.txt"), "text": "second step"},
        shell("echo three >> steps.txt"),
        DONE,
    ),
    conversation("short", shell("sleep 0.5; echo made > made.txt"), DONE),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are slow."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=BOTH_PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


place = place_fixture(*SCRIPT, providers=BOTH_PROVIDERS, FANOUT_WORKER__LEASE_SECONDS="4")


@pytest.fixture
def shipped_place(place: Installation) -> Installation:
    """A place whose lease is the one that a release has."""
    del place.environment["FANOUT_WORKER__LEASE_SECONDS"]
    return place
