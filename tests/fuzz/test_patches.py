"""Patches in the format that models write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.patches import (
    ADD,
    BEGIN,
    DELETE,
    END,
    END_OF_FILE,
    MOVE,
    UPDATE,
    AddedFile,
    UpdatedFile,
    parse_patch,
    patched,
)
from tests.fuzz.inputs import FUZZ, MARKS, damaged

pytestmark = MARKS

WORDS = ("a", "b", "c", " a", "b ", "\ta", "", "@@ a", "+a", "-b", "\u00a0a", "\u2019", "a\u200bb")
LINES = st.sampled_from(WORDS)
HEADINGS = (
    BEGIN,
    END,
    f"{ADD}f",
    f"{UPDATE}f",
    f"{DELETE}f",
    f"{MOVE}g",
    END_OF_FILE,
    "@@",
    "@@ a",
    "@@ -1,2 +3 @@ a",
)
ROWS = st.sampled_from(HEADINGS) | st.builds(
    "{}{}".format, st.sampled_from((" ", "+", "-", "")), LINES
)
TEXTS = st.builds(
    lambda lines, end, is_open: end.join(lines) + ("" if is_open else end),
    st.permutations(("a", "b", "c", "d")) | st.lists(LINES, max_size=8),
    st.sampled_from(("\n", "\r\n")), st.booleans(),
)  # fmt: skip
HUNK_LINES = st.lists(
    st.tuples(st.sampled_from(" -+-"), st.sampled_from(("a", "b", "c", " a"))),
    min_size=1,
    max_size=2,
)


@st.composite
def updates(draw: st.DrawFn) -> str:
    """A patch of one file with several hunks."""
    rows = [BEGIN, f"{UPDATE}f"]
    for hunk in draw(st.lists(HUNK_LINES, min_size=1, max_size=3)):
        rows.append(draw(st.sampled_from(("@@", "@@", "@@ a"))))
        rows += [f"{kind}{line}" for kind, line in hunk]
    return "\n".join([*rows, END])


PATCHES = (
    updates()
    | st.lists(ROWS, max_size=12).map(lambda rows: "\n".join([BEGIN, *rows, END]))
    | damaged("patches", (b"\n*** ", b"\n+", b"\n-", b"@@")).map(
        lambda data: data.decode("utf-8", "replace")
    )
)


@FUZZ
@given(PATCHES, TEXTS)
def test_a_patch_changes_what_it_names_and_nothing_else(patch: str, text: str) -> None:
    try:
        sections = parse_patch(patch)
    except ToolMistake:
        return
    assert sections
    given_lines = set(patch.replace("\r\n", "\n").split("\n"))
    for section in sections:
        if isinstance(section, AddedFile):
            lines = section.text.split("\n")
            assert lines.pop() == ""
            assert all(not line or f"+{line}" in given_lines for line in lines)
        if isinstance(section, UpdatedFile):
            try:
                changed = patched(text, section.hunks, section.path)
            except ToolMistake:
                continue
            lines_of = [line for hunk in section.hunks for line in hunk.lines]
            gone = [line for kind, line in lines_of if kind == "-"]
            come = [line for kind, line in lines_of if kind == "+"]
            assert written(changed.split("\n")) == written(text.split("\n")) - written(
                gone
            ) + written(come)


def written(lines: list[str]) -> int:
    """Return how many lines are not blank: whether a last, blank one counts depends on its end."""
    return sum(bool(line.strip()) for line in lines)
