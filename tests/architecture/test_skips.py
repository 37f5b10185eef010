"""A skip for a reason that nobody has accepted fails the run, and each is counted at its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY

TESTS = """
import pytest

@pytest.mark.parametrize("reason", {reasons})
def test_it(reason):
    if reason:
        pytest.skip(reason)
"""


@pytest.mark.parametrize(
    ("reasons", "code"),
    [(("", "needs root", "needs root"), 0), (("", "needs root", "I was in a hurry"), 1)],
)
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_says_what_it_skipped_and_fails_for_an_unlisted_reason(
    tmp_path: Path, reasons: tuple[str, ...], code: int, processes: str
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.format(reasons=reasons))
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "xdist",
                "-p",
                "tests.skips",
                "-q",
                "-n",
                processes,
            ),
            *("-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)),
        ],
        cwd=REPOSITORY,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take seconds to import
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stdout + done.stderr
    assert "2 skipped" in done.stdout
    assert ("NOT ACCEPTED" in done.stdout) is bool(code)
