"""The demo: a small project with faults, a goal, and a script for the model that has them mended.

The script stands for a model's replies only; agents, jobs, sandboxes and merges are the real ones.
"""

from __future__ import annotations

import shutil
from pathlib import Path

SAMPLE = Path(__file__).parent / "sample"
"""A bakery's program: five of its tests fail, and pass once the coordinator's goal is reached."""

SCRIPT = Path(__file__).parent / "script.yaml"

MODEL = f"scripted:{SCRIPT}"
"""The model that answers from the script."""

GOAL = (
    "The bakery's tests fail. Find out why, mend the code, and cover the empty basket with a test."
)

TEST_COMMAND = "python3 -m unittest"
"""Runs the sample's tests from its folder; needs nothing but Python."""

TEST_TASK = "Run the whole test suite and report what it prints."
"""A task for the agent `tester`: its summary is the command's answer, with `exit_code` and
`output`."""


def copy_sample(target: Path) -> None:
    """Put the sample project into a folder, which is made when it is missing.

    Raises:
        FileExistsError: the folder has a `bakery` already.
    """
    if (target / "bakery").exists():
        raise FileExistsError(f"{target} has a bakery already: name an empty folder.")
    shutil.copytree(
        SAMPLE, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
