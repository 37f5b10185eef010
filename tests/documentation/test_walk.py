"""The walk through the code in `docs/how-it-works.md`, and its picture."""

from __future__ import annotations

import ast
import re

import pytest

from docs.generate.walk import PICTURE, Arrow, Stop, arrows, drawn, picture, stops
from tests.architecture.sources import REPOSITORY


def test_the_walk_has_eight_files_and_every_function_that_it_names_exists():
    walk = stops()

    assert [stop.number for stop in walk if stop.number] == [*range(1, 9)]
    assert [stop.path for stop in walk if not (REPOSITORY / stop.path).is_file()] == []
    assert {stop.path: missing for stop in walk if (missing := stop.missing())} == {}
    assert [stop.path for stop in walk if not stop.functions] == []


def test_the_picture_is_the_one_that_the_code_gives():
    assert PICTURE.read_text(encoding="utf-8") == picture(stops()), (
        "`make docs` draws it again; look at it"
    )


def test_every_arrow_of_the_picture_is_an_import_or_a_call_in_the_code():
    """Looked for in the text of the files, and not as the picture was made."""
    found = drawn(PICTURE.read_text(encoding="utf-8"))

    assert [arrow for arrow in found if not is_in_the_code(arrow)] == []
    assert len(found) >= 15


def is_in_the_code(arrow: Arrow) -> bool:
    (caller, by), (called, to) = (one.split(":") for one in (arrow.caller, arrow.called))
    texts = {path: (REPOSITORY / path).read_text(encoding="utf-8") for path in (caller, called)}
    name = to.rpartition(".")[2]
    is_sent = "send_task(RUN_JOB" in re.sub(r"\s", "", source(texts[caller], by))
    is_called = f"{name}(" in source(texts[caller], by)
    is_registered = "name=RUN_JOB" in texts[called]
    module = caller.rpartition("/")[2].removesuffix(".py")
    is_imported = names_defined(texts[called]) & names_imported(texts[caller])
    is_known = is_imported or re.search(rf"import .*{name}|{module} import", texts[called])
    return bool(is_known) and (is_called or (is_sent and is_registered))


def source(text: str, function: str) -> str:
    name = function.rpartition(".")[2]
    return next(
        ast.get_source_segment(text, node) or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )


def names_defined(text: str) -> set[str]:
    nodes = [*ast.walk(ast.parse(text))]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name)}
    return assigned | {str(getattr(node, "name", "")) for node in nodes}


def names_imported(text: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes for alias in node.names}


@pytest.mark.parametrize(
    ("by", "to"),
    [
        ("JobRunner._work", "Ledger.claim"),  # does not call it
        ("JobRunner._ask_for_claim", "Ledger.submit"),
    ],
)
def test_a_call_that_the_code_does_not_have_gets_no_arrow(by, to):
    caller = Stop("workers/attempt/job_runner.py", 1, [by])
    called = Stop("orchestrator/jobs/store/ledger.py", 2, [to])

    assert arrows([caller, called]) == []


def test_a_call_of_the_same_name_in_a_file_that_is_not_imported_gets_no_arrow():
    caller = Stop("orchestrator/client/job_client.py", 1, ["JobClient._submit"])
    namesake = Stop("orchestrator/adk/task_toolset.py", 2, ["ClientTasks.submit"])

    assert arrows([caller, namesake]) == []


def test_a_function_that_does_not_exist_is_missing():
    (stop,) = stops("1. `orchestrator/jobs/store/ledger.py`: `Ledger.claim()`, `Ledger.gone()`.\n")

    assert stop.missing() == ["Ledger.gone"]


def test_the_readme_names_the_same_files_in_the_same_order():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    short = text[text.index("## How it works") :].partition("\n## ")[0]

    named = re.findall(r"`((?:orchestrator|workers)/\S+\.py)`", short)
    assert named == [stop.path for stop in stops() if stop.number]
    assert "docs/images/walk.svg" in short
