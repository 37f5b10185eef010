"""Frames of a resident's stream, and what its replies say: a job may write them instead."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fanout.workers.sandbox.inside import frames
from fanout.workers.sandbox.resident import replies
from tests.fuzz.inputs import FUZZ, MARKS, damaged

pytestmark = MARKS

MAX_VALUES = 64
NUMBERS = st.integers(-(10**29), 10**29) | st.sampled_from(
    (0, -1, 2**63 - 1, 2**63, 10**30, 4095, 4096)
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=30,
)  # fmt: skip
PIECES = (
    *(b"n", b"t", b"f", b"l", b"m", b"e", b"i1;", b"i-1;", b"dnan;", b"dinf;", b"d1e999;", b"s1;"),
    *(
        b"s-1;",
        b"b99;",
        b"s1;a",
        b"b0;",
        b"i" + b"9" * 40 + b";",
        b"i_1;",
        b"i 1;",
        b"l" * 20,
        b"m" * 2000,
    ),
)
PARTS = st.lists(st.sampled_from(PIECES) | VALUES.map(frames.encode), max_size=8).map(b"".join)
BYTES = PARTS | damaged("frames", PIECES) | st.integers(1, 3000).map(lambda n: b"l" * n + b"e" * n)


def size_and_depth(value: Any) -> tuple[int, int]:
    """Return of how many values one consists, and how deeply they are nested."""
    inner: list[Any] = value if isinstance(value, list) else []
    if isinstance(value, dict):
        inner = [*value, *value.values()]
    parts = [size_and_depth(one) for one in inner]
    deepest = max((depth for _, depth in parts), default=0)
    return 1 + sum(size for size, _ in parts), deepest + isinstance(value, (list, dict))


def same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)


@FUZZ
@given(BYTES)
def test_bytes_are_a_bounded_value_or_no_frame(data: bytes) -> None:
    try:
        value = frames.decode(data, MAX_VALUES)
    except frames.FrameError:
        return
    size, depth = size_and_depth(value)
    assert size <= MAX_VALUES
    assert depth <= frames.MAX_DEPTH
    assert same(frames.decode(frames.encode(value)), value)


@FUZZ
@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(frames.decode(frames.encode(value)), value)


FRAMES = st.tuples(
    st.sampled_from((frames.REPLY, frames.MORE, frames.TUNNEL, frames.REQUEST)),
    st.integers(0, 3),
    st.none() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.binary(max_size=30),
)
LIMIT = 20
"""Of a payload: a larger one is refused, like a request."""


@FUZZ
@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_a_stream_is_the_same_frames_however_it_is_cut(
    sent: list[tuple[int, int, dict[str, int] | None, bytes]], sizes: list[int]
) -> None:
    stream, expected, refused_at = b"", [], None
    for kind, number, header, payload in sent:
        packed = frames.pack_frame(kind, number, header, payload)
        if refused_at is None:
            if kind == frames.REQUEST or len(payload) > LIMIT:
                refused_at = len(stream) + frames.PREFIX.size
            else:
                head = b"" if header is None else frames.encode(header)
                expected.append((kind, number, head, payload))
        stream += packed

    def accept(kind: int, _number: int, _header: int, payload: int) -> None:
        if kind == frames.REQUEST or payload > LIMIT:
            raise frames.FrameError("refused")

    reader = frames.FrameReader(accept)
    found: list[frames.Frame] = []
    at = 0
    turn = 0
    while at < len(stream):
        stop = min(len(stream), at + sizes[turn % len(sizes)])
        turn += 1
        try:
            found += reader.feed(stream[at:stop])
        except frames.FrameError:
            assert refused_at is not None
            assert at < refused_at <= stop  # with the last byte of its prefix
            break
        at = stop
        assert refused_at is None or at < refused_at, "what is refused is kept"
    # What comes in one piece with a refused prefix is lost with it.
    assert found == expected[: len(found)]
    assert refused_at is not None or found == expected


NUMBERS_AS_TEXT = (b"", b"-1", b"nan", b"1e400", b"9" * 19, b"9" * 25, b"0x1", b"1_0")


def mostly(*usual: bytes) -> st.SearchStrategy[bytes]:
    """A field that is often one of these, so that few fields of an entry are wrong at once."""
    return st.sampled_from((*usual * 4, *NUMBERS_AS_TEXT))


ENTRIES = st.lists(
    st.tuples(
        mostly(b"f", b"d", b"l", b"o"), mostly(b"0", b"12"), mostly(b"0.0", b"1.5"), mostly(b"644", b"7777"),
        st.sampled_from((b"a", b"a b/c", b"\xff", b"")),
    ).map(b" ".join),
    min_size=1, max_size=4,
).map(b"\0".join)  # fmt: skip


@FUZZ
@given(ENTRIES | damaged("entries"), st.none() | st.integers(0, 5))
def test_entries_are_those_of_a_file_system(data: bytes, most: int | None) -> None:
    try:
        entries = replies.parse_entries(data, most)
    except frames.FrameError:
        return
    assert most is None or len(entries) <= max(1, most)
    for entry in entries:
        assert 0 <= entry.size_bytes < 2**63
        assert math.isfinite(entry.modified_at)
        assert 0 <= entry.mode <= 0o7777
        assert entry.path


REPLY_KEYS = (
    "result",
    "errno",
    "path",
    "refused",
    "message",
    "hits",
    "unsearched",
    "left",
    "left_output",
)
REPLIES = st.dictionaries(
    st.sampled_from((*REPLY_KEYS, "left_processes", "output_file", "output_file_bytes")),
    VALUES | st.lists(st.tuples(NUMBERS, st.text(max_size=4)).map(list), max_size=3)
    | st.lists(st.tuples(st.text(max_size=3), NUMBERS, st.text(max_size=3)).map(list), max_size=3)
    | st.sampled_from(("1-abcdef.txt", "../1-abcdef.txt", "1-abcdef.txt\n")),
    max_size=5,
)  # fmt: skip


@FUZZ
@given(REPLIES, BYTES)
def test_a_reply_is_a_result_an_error_or_refused(reply: dict[str, Any], other: bytes) -> None:
    for header in (frames.encode(reply), other):
        try:
            parsed = replies.parse_reply(header)
        except frames.FrameError:
            continue
        assert isinstance(parsed, (dict, OSError, replies.OperationFailed))
    for read in (
        replies.output_file, replies.left_running,
        lambda result: replies.integer(result, "errno", 1, 9), lambda result: replies.flag(result, "left"),
        lambda result: replies.duration(result, "left"),
    ):  # fmt: skip
        try:
            read(reply)
        except frames.FrameError:
            continue
    for data in (frames.encode(reply), other):
        try:
            hits, names = replies.parse_hits(data, 3)
        except frames.FrameError:
            continue
        assert len(hits) <= 7
        assert all(isinstance(name, str) for name in names)
        assert all(hit.line_number > 0 for hit in hits)
