"""How inputs are made: kept examples that are damaged, and JSON of any form and depth."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""Of each fuzzer; 0: those of CI, which are the same at every run."""
CI_EXAMPLES = 250
CORPUS = Path(__file__).parent / "corpus"
MAX_DEPTH = 1_200
"""Of nested JSON: deeper than Python's stack."""

FUZZ = settings(
    max_examples=EXAMPLES or CI_EXAMPLES,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    phases=[
        Phase.explicit,
        Phase.generate,
        *([Phase.shrink] if not os.environ.get("PLANTED") else []),
    ],
    suppress_health_check=list(HealthCheck),
)
"""The settings of every fuzzer; a planted fault only has to be found, not to be explained."""
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning"),  # of a long report
]
"""Of every module of fuzzers."""


@cache
def seeds(parser: str) -> list[bytes]:
    """Return the kept examples of a parser."""
    found = [path.read_bytes() for path in sorted((CORPUS / parser).iterdir())]
    assert found, parser
    return found


@st.composite
def damaged(draw: st.DrawFn, parser: str, more: tuple[bytes, ...] = ()) -> bytes:
    """A kept example with a few changes: pieces removed, repeated, replaced, or of another one.

    Args:
        draw: Hypothesis's.
        parser: The folder of the examples.
        more: Pieces that are put in beside arbitrary ones.
    """
    known = seeds(parser)
    data = draw(st.sampled_from(known))
    pieces = st.binary(max_size=8) | st.sampled_from(
        (b"\0", b"\xff", b"\r\n", b"-1", b"9" * 20, *more)
    )
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 64)))
        kind = draw(st.sampled_from(("remove", "repeat", "replace", "insert", "join")))
        if kind == "remove":
            data = data[:start] + data[stop:]
        elif kind == "repeat":
            data = data[:stop] + data[start:stop] * draw(st.integers(1, 4)) + data[stop:]
        elif kind == "replace":
            data = data[:start] + draw(pieces) + data[stop:]
        elif kind == "insert":
            data = data[:start] + draw(pieces) + data[start:]
        else:
            other = draw(st.sampled_from(known))
            data = data[:start] + other[draw(st.integers(0, len(other))) :]
    return data


TEXTS = st.text(max_size=12) | st.sampled_from(
    (
        "",
        "\ud83d",
        "\udc80",
        "\0",
        "$ref",
        "#",
        "#/$defs/a",
        "https://evil.example/",
        "__proto__",
        "a" * 3000,
    )
)
NUMBERS = st.integers(-3, 3) | st.sampled_from((2**63, -(2**63), 10**400, 1e308, 0.1, -0.0))
SIMPLE = st.none() | st.booleans() | NUMBERS | TEXTS


def json_values(
    keys: st.SearchStrategy[str], leaves: st.SearchStrategy[Any] = SIMPLE
) -> st.SearchStrategy[Any]:
    """Any JSON value whose objects often have these keys; sometimes nested as deeply as it gets."""
    deep = st.builds(nested, st.integers(MAX_DEPTH // 4, MAX_DEPTH), keys, st.booleans())
    shallow = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=12,
    )
    return st.integers(0, 9).flatmap(lambda number: deep if number == 0 else shallow)


class Deep(dict[str, Any]):
    """A deeply nested value, which a report of Hypothesis names instead of writing it."""

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        text = as_json(self)
        printer.text(f"<{len(text)} bytes: {text[:40]!r} …>")


def nested(depth: int, key: str, is_list: bool) -> Deep:
    """Return a value in as many lists or objects."""
    value: Any = {}
    for _ in range(depth):
        value = [value] if is_list else {key: value}
    return Deep({key: value})


def as_json(value: Any) -> bytes:
    """Return a value as JSON, however deep it is; bytes as they are."""
    return value if isinstance(value, bytes) else _written(value).encode()


def _written(value: Any) -> str:
    if isinstance(value, Deep):
        return _written_branch(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{_written(one)}' for key, one in value.items())}}}"
    return f"[{','.join(map(_written, value))}]" if isinstance(value, list) else json.dumps(value)


def _written_branch(value: Any) -> str:
    before, after = [], []
    while value:
        if isinstance(value, list):
            before.append("[")
            after.append("]")
            [value] = value
        else:
            [(key, value)] = value.items()
            before.append(f"{{{json.dumps(key)}:")
            after.append("}")
    return "".join([*before, "{}", *reversed(after)])
