"""Each promise of README.md and SECURITY.md has a test (`promises.toml`)."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import REPOSITORY

TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("promises.toml").read_text(encoding="utf-8")
)
PROMISES: list[dict[str, Any]] = TABLE["promise"]
NO_TEXT = re.compile(r"```.*?```|<!--.*?-->|!\[.*?\]\(.*?\)", re.DOTALL)
TITLE = re.compile(r"^\*\*[^*]+\.\*\* (?=\S)", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.:])(?:\*\*)? (?=[A-Z`*0-9])")


@cache
def document_words(document: str) -> str:
    text = (REPOSITORY / document).read_text(encoding="utf-8").replace("**", "")
    return " ".join(text.split())


def sentences(document: str, section: str) -> list[str]:
    """The sentences of a section, without the titles of paragraphs and without blocks."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    start = text.index(f"\n## {section}\n") + len(f"\n## {section}\n")
    part = NO_TEXT.sub("", text[start:].partition("\n## ")[0])
    if document == "SECURITY.md":
        part = TITLE.sub("", part)
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^- ", "\n", part, flags=re.MULTILINE))
    return [
        one.replace("**", "")
        for paragraph in paragraphs
        for one in SENTENCE_END.split(" ".join(paragraph.split()))
        if one
    ]


@cache
def functions_of(path: str) -> frozenset[str]:
    file = REPOSITORY / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_every_quoted_promise_is_in_its_document():
    gone = [one for one in PROMISES if one["sentence"] not in document_words(one["document"])]

    assert gone == []


@pytest.mark.parametrize(
    ("document", "section"),
    [(name, one) for name, sections in TABLE["sections"].items() for one in sections],
)
def test_every_sentence_of_these_sections_is_in_the_table(document, section):
    quoted = {one["sentence"] for one in PROMISES if one["document"] == document}

    assert [one for one in sentences(document, section) if one not in quoted] == []


def test_every_promise_has_tests_that_exist_or_promises_nothing():
    named = [(one["sentence"], test) for one in PROMISES for test in one.get("tests", [])]
    missing = [
        test
        for _, test in named
        if test.rpartition("::")[2] not in functions_of(test.split("::")[0])
    ]

    assert missing == []
    assert [
        one["sentence"] for one in PROMISES if bool(one.get("tests")) == ("promises_nothing" in one)
    ] == []
    assert len(named) > 100
