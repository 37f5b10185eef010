"""`--one-of-each`: of a slow test with several sets of parameters, the first one runs.

What a slow test is about is seen with one of its faults, clients, browsers or releases; the others
find what only they do. `.ci/run` takes one of each, and all with `CI_FULL=1`.

Loaded by `conftest.py` as a plugin.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-of-each",
        action="store_true",
        help="run slow tests with the first of their sets of parameters only",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("one_of_each"):
        return
    kept, others = list[pytest.Item](), list[pytest.Item]()
    seen = set[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        is_other = item.get_closest_marker("slow") is not None and test in seen
        (others if is_other else kept).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=others)
    items[:] = kept
