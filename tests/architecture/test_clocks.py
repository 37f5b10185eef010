"""No test fails because its machine is busy: none asserts that something took some seconds only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

CLOCKS = {"monotonic", "perf_counter", "time"}
BUSY_SECONDS = 30
"""What takes a moment takes this on a machine that compiles, tests and runs jobs as well."""
TESTS = Path(__file__).parents[1]


def _reads_a_clock(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Attribute)
        and one.attr in CLOCKS
        and isinstance(one.value, ast.Name)
        and one.value.id == "time"
        for one in ast.walk(node)
    )


def _is_short(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and node.value < BUSY_SECONDS
    )


def _short_bounds(function: ast.AST) -> Iterator[int]:
    """The lines with an assertion that a measured time is below some seconds."""
    measured = {
        target.id
        for one in ast.walk(function)
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.BinOp)
        and _reads_a_clock(one.value)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    for one in ast.walk(function):
        if isinstance(one, ast.Assert) and isinstance(one.test, ast.Compare):
            operands = pairwise([one.test.left, *one.test.comparators])
            for (left, right), operator in zip(operands, one.test.ops, strict=True):
                is_measured = _reads_a_clock(left) or getattr(left, "id", None) in measured
                if is_measured and isinstance(operator, ast.Lt | ast.LtE) and _is_short(right):
                    yield one.lineno


def test_no_test_asserts_that_something_took_some_seconds_only() -> None:
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("test_*.py")
        for line in _short_bounds(ast.parse(path.read_text(encoding="utf-8")))
    }

    assert found == set(), "show it by an order, a count or an event; `make bench` measures speed"
