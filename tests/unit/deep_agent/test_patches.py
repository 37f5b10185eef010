"""What holds for every patch and every edit of a text."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing import Edit, replaced, without_carriage_returns
from fanout.orchestrator.deep_agent.tools.patches import (
    UpdatedFile,
    parse_patch,
    patched,
)

LINES = st.lists(st.sampled_from(["a", "b", " a", "b ", "", "+", "-x", "*** End of File", "@@ c"]))
ENDS = st.lists(st.sampled_from(["\n", "\r\n"]), min_size=1, max_size=5)


def joined(lines: list[str], ends: list[str]) -> str:
    return "".join(line + ends[number % len(ends)] for number, line in enumerate(lines))


def whole_patch(old: list[str], new: list[str]) -> str:
    """One hunk that has every line of the file."""
    rows = ["*** Begin Patch", "*** Update File: f", "@@"]
    for kind, start, stop, new_start, new_stop in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            rows += [f" {line}" for line in old[start:stop]]
            continue
        rows += [f"-{line}" for line in old[start:stop]]
        rows += [f"+{line}" for line in new[new_start:new_stop]]
    return "\n".join([*rows, "*** End Patch"])


@given(LINES, LINES, ENDS)
def test_a_patch_from_one_text_to_another_gives_the_other(
    old: list[str], new: list[str], ends: list[str]
) -> None:
    if old == new:
        return
    section = parse_patch(whole_patch(old, new))[0]
    assert isinstance(section, UpdatedFile)
    text = joined(old, ends)
    result = patched(text, section.hunks, "f")
    assert without_carriage_returns(result) == joined(new, ["\n"])
    if len(set(ends)) == 1 and old:
        assert result == joined(new, ends)


@given(LINES.filter(len), ENDS, st.data())
def test_lines_that_a_hunk_does_not_touch_stay_as_they_are(
    old: list[str], ends: list[str], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(old) - 1))
    lines = [*old[:at], "unique", *old[at + 1 :]]
    text = joined(lines, ends)
    section = parse_patch(
        "*** Begin Patch\n*** Update File: f\n@@\n-unique\n+other\n*** End Patch"
    )[0]
    assert isinstance(section, UpdatedFile)
    assert patched(text, section.hunks, "f") == text.replace("unique", "other")


@given(st.text(st.sampled_from("ab\n\r é*@+- "), max_size=60))
def test_no_text_is_a_patch_by_accident_or_breaks_the_parser(text: str) -> None:
    for patch in (text, f"*** Begin Patch\n*** Update File: f\n{text}\n*** End Patch"):
        try:
            sections = parse_patch(patch)
        except ToolMistake:
            continue
        assert all(section.path == "f" for section in sections)


PIECES = st.lists(st.sampled_from(["a", "b", "\n", "\r\n"]), max_size=30)


@given(PIECES.map("".join), st.data(), st.text("abc\n", max_size=5))
def test_an_edit_changes_what_it_names_and_nothing_else(
    text: str, data: st.DataObject, new: str
) -> None:
    """Against the same edit on the text without carriage returns."""
    seen = without_carriage_returns(text)
    start = data.draw(st.integers(0, len(seen)))
    old = seen[start : data.draw(st.integers(start, len(seen)))]
    if not old or old == new:
        return
    result, count = replaced(text, Edit(old, new, replace_all=True))
    assert without_carriage_returns(result) == seen.replace(old, new)
    assert count == seen.count(old)
    assert result.startswith(text[: text.find(old)]) or "\n" in old


@pytest.mark.parametrize(
    ("text", "hunk", "expected"),
    [
        ("a\nb", ["-b", "+c"], "a\nc"),
        ("a\r\nb", ["-b", "+c", "+d"], "a\r\nc\r\nd"),
        ("a\nb", ["@@ b", "+c"], "a\nb\nc"),
        ("a\n", ["+b"], "a\nb\n"),
        ("", ["+b"], "b\n"),
        ("a\n", ["-a"], ""),
        ("\tx  \n\ty\n", [" x", "-y", "+\tz"], "\tx  \n\tz\n"),
        ("say “a”\n", ['-say "a"', "+b"], "b\n"),
        ("a\nb\na\nb\n", [" a", "-b", "+c", "*** End of File"], "a\nb\na\nc\n"),
        ("a\nx\na\n", ["@@ x", "-a", "+c"], "a\nx\nc\n"),
        ("a\nb\n", ["@@ -1,2 +1,2 @@ a", "-b", "+c"], "a\nc\n"),
    ],
)
def test_hunks_apply_where_models_mean_them(text: str, hunk: list[str], expected: str) -> None:
    patch = "\n".join(["*** Begin Patch", "*** Update File: f", *hunk, "*** End Patch"])
    section = parse_patch(patch)[0]
    assert isinstance(section, UpdatedFile)
    assert patched(text, section.hunks, "f") == expected


@pytest.mark.parametrize("new", ["c", "c\n"])
def test_many_replacements_in_one_long_line_take_no_long_time(new: str) -> None:
    text = "a\r\n" + "b" * 100_000
    result, count = replaced(text, Edit("b", new, replace_all=True))
    assert count == 100_000
    assert result == "a\r\n" + new.replace("\n", "\r\n") * 100_000


def test_replacements_do_not_grow_a_file_beyond_its_limit() -> None:
    with pytest.raises(ToolMistake, match="larger than"):
        replaced("a" * 1_000_000, Edit("a", "b" * 1_000_000, replace_all=True))


def test_a_patch_of_many_hunks_on_many_lines_takes_no_long_time() -> None:
    text = "".join(f"line {number}\n" for number in range(50_000))
    hunks = "\n".join(f"@@\n- line {n}\n+LINE {n}" for n in range(0, 50_000, 50))
    section = parse_patch(f"*** Begin Patch\n*** Update File: f\n{hunks}\n*** End Patch")[0]
    assert isinstance(section, UpdatedFile)
    assert patched(text, section.hunks, "f").count("LINE") == 1_000
