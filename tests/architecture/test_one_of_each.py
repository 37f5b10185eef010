"""Which slow tests run with `--one-of-each`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY

SLOW_ONLY = """
import pytest
pytestmark = pytest.mark.slow

@pytest.mark.parametrize("way", ["killed", "hangs"])
def test_first(way): ...

def test_second(): ...
"""
MARKED = """
import pytest
pytestmark = pytest.mark.slow

def test_first(): ...

@pytest.mark.representative
@pytest.mark.parametrize("way", ["killed", "hangs"])
def test_second(way): ...

@pytest.mark.representative
def test_third(): ...
"""
WITH_QUICK_TESTS = """
import pytest

def test_quick(): ...

@pytest.mark.slow
def test_slow(): ...
"""


@pytest.mark.parametrize(
    ("content", "taken"),
    [
        (SLOW_ONLY, ["test_first[killed]"]),
        (MARKED, ["test_second[killed]", "test_third"]),
        (WITH_QUICK_TESTS, []),
    ],
    ids=["the first one", "those that are marked", "none where quick ones meet the kind"],
)
def test_one_of_the_slow_tests_of_a_file_is_taken(
    tmp_path: Path, content: str, taken: list[str]
) -> None:
    (tmp_path / "test_some.py").write_text(content)
    (tmp_path / "test_more.py").write_text("def test_quick(): ...")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.one_of_each", "--one-of-each"),
            *("-m", "slow", "--collect-only", "-q"),
            *("-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)),
        ],
        cwd=REPOSITORY,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take seconds to import
        capture_output=True,
        text=True,
        check=False,
    )

    listed = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert listed == taken, done.stdout + done.stderr
