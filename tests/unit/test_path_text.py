r"""Every name of a file has one text, and every text stands for one name."""

from __future__ import annotations

import base64
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcmatch import glob

from fanout.orchestrator.jobs.changes import (
    ChangedFile,
    ChangeKind,
    Changes,
    FileChange,
)
from fanout.orchestrator.path_text import (
    differing_bytes,
    normal_path_text,
    os_path,
    path_bytes,
    path_glob,
    path_text,
)
from fanout.workers.sandbox.inside import change_bundle

NAMES = st.binary().map(lambda raw: raw.replace(b"\0", b"")) | st.lists(
    st.sampled_from([b"\\", b"x", b"\\x", b"5c", b"e9", b"\xe9", "é".encode(), b"/", b"a"])
).map(b"".join)


@given(NAMES)
@example(b"caf\xe9.txt")
@example(rb"caf\xe9.txt")
def test_a_name_comes_back_from_its_text(name: bytes) -> None:
    text = path_text(name)

    text.encode()
    assert path_bytes(text) == name
    assert os.fsencode(os_path(text)) == name
    assert path_text(os.fsdecode(name)) == text
    assert normal_path_text(text) == text


@given(NAMES, NAMES)
def test_two_names_never_have_one_text(one: bytes, other: bytes) -> None:
    assert (path_text(one) == path_text(other)) == (one == other)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_stands_for_a_name(text: str) -> None:
    assert path_text(path_bytes(text)) == normal_path_text(text)
    assert normal_path_text(normal_path_text(text)) == normal_path_text(text)


@given(NAMES)
def test_no_escape_hides_a_separator_a_dot_or_a_nul(name: bytes) -> None:
    text = path_text(name)

    for character in "/.\0":
        assert path_bytes(text).count(character.encode()) == text.count(character)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"caf\xe9.txt", r"caf\xe9.txt"),
        (rb"caf\xe9.txt", r"caf\x5cxe9.txt"),
        ("café.txt".encode(), "café.txt"),
        (rb"C:\temp", r"C:\temp"),
        ("日本.txt".encode("shift-jis"), r"\x93\xfa\x96{.txt"),
        ("\ud83d".encode("utf-8", "surrogatepass"), r"\xed\xa0\xbd"),
    ],
)
def test_the_text_shows_what_can_be_read(name: bytes, text: str) -> None:
    assert path_text(name) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"caf\xE9", r"caf\xe9"),
        (r"caf\xc3\xa9", "café"),
        (r"\x41", r"\x5cx41"),
        (r"\xq", r"\x5cxq"),
    ],
)
def test_what_a_person_writes_has_one_normal_form(written: str, text: str) -> None:
    assert normal_path_text(written) == text


@given(NAMES.filter(lambda name: b"/" not in name and name))
def test_a_text_is_found_by_itself_as_a_pattern(name: bytes) -> None:
    text = path_text(name)
    if not set(text) & set("*?[]{}!()|") and "\\" not in text.replace("\\x", ""):
        assert glob.globmatch(text, path_glob(text), flags=glob.DOTGLOB | glob.FORCEUNIX)


@given(NAMES)
def test_the_sandbox_writes_the_same_text(name: bytes) -> None:
    path = os.fsdecode(name)

    written = change_bundle._with_bytes("path", path)

    assert written["path"] == path_text(name)
    assert written.get("path_bytes") == differing_bytes(path_text(name))


def test_a_change_has_its_bytes_only_where_its_text_is_not_its_name() -> None:
    plain = FileChange(path="é", change=ChangeKind.ADDED)
    odd = FileChange(path=r"caf\xe9", change=ChangeKind.RENAMED, from_path=r"\xff")

    assert plain.model_dump().keys() == FileChange.model_fields.keys() - {
        "path_bytes",
        "from_path_bytes",
    }
    assert base64.b64decode(str(odd.path_bytes)) == b"caf\xe9"
    assert base64.b64decode(str(odd.from_path_bytes)) == b"\xff"
    assert FileChange.model_validate_json(odd.model_dump_json()) == odd


def test_bytes_that_contradict_the_text_do_not_count() -> None:
    lie = base64.b64encode(b"../../etc/passwd").decode()

    read = FileChange.model_validate({"path": "a", "path_bytes": lie, "change": "added"})

    assert read.path_bytes is None


def test_a_list_of_an_older_release_has_names_and_not_texts() -> None:
    old = '{"version": 1, "files": [{"path": "caf\\\\xe9", "change": "added"}]}'

    (file,) = Changes.model_validate_json(old).files

    assert path_bytes(file.path) == rb"caf\xe9"


@pytest.mark.parametrize(("name", "version"), [("é", 1), (r"caf\xe9", 2), (r"\x5cxe9", 2)])
def test_a_list_has_the_oldest_version_that_can_express_it(name: str, version: int) -> None:
    changes = Changes(files=(ChangedFile(path=name, change=ChangeKind.ADDED),))

    read = Changes.model_validate_json(changes.model_dump_json())

    assert (read.version, read.files) == (version, changes.files)
