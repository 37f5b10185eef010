"""`--one-of-each`: of the slow tests, those that meet each kind of fault, client or attack once.

A file is about one kind: a killed worker, a release, a browser, a client of MCP, a way out of a
sandbox. Of its slow tests run

- those that are marked `representative`;
- without such a mark its first one, or none if the file has quick tests, which meet the kind in
  `make test`;
- each with the first of its sets of parameters.

The others find what only they do. `.ci/run` takes one of each, and all with `CI_FULL=1`.

Loaded by `conftest.py` as a plugin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-of-each",
        action="store_true",
        help="of the slow tests, run one of each file, or those that are marked as representative",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("one_of_each"):
        return
    files = defaultdict[Path, list[pytest.Item]](list)
    for item in items:
        files[item.path].append(item)
    others = set(items).difference(*map(_of_one_file, files.values()))
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]


def _of_one_file(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return its quick tests, and the slow ones that are taken."""
    slow = [test for test in tests if test.get_closest_marker("slow")]
    quick = [test for test in tests if test not in slow]
    marked = [test for test in slow if test.get_closest_marker("representative")]
    taken = marked or ([] if quick else slow[:1])
    with_first_parameters = {test.nodeid.partition("[")[0]: test for test in reversed(taken)}
    return [*quick, *with_first_parameters.values()]
