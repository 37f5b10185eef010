"""The interface changes only where somebody sees it: in the frozen description."""

from __future__ import annotations

import json

from tests.unit.server.openapi import FROZEN, described


def test_the_frozen_description_is_that_of_the_code() -> None:
    now = described()
    assert now == FROZEN.read_text(encoding="utf-8"), "run `make openapi`, and review the diff"
    document = json.loads(now)
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    known = {tag["name"] for tag in document["tags"]}
    assert {tag for one in operations for tag in one["tags"]} == known
    assert all(one["tags"] and one.get("description") for one in operations)
    assert all(
        "application/problem+json" in str(one) or "Problem4" in str(one) for one in operations
    )
