"""A user's project has packages of the names of our folders: both sides import their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_repository import OUR_FOLDERS
from tests.integration.scripts import call, calls, conversation, says, write_script

NAMES = sorted({*OUR_FOLDERS, "tools", "agents", "jobs", "server"} - {".ci", "fanout"})

PROGRAM = """
import asyncio, sys
from google.adk.runners import InMemoryRunner
from fanout import JobClient, JobSpec, TaskToolset, create_deep_agent
import {names}

async def price(item: str) -> dict:
    '''Return an item's price.'''
    return {{"price": tools.OWN}}

async def main():
    agent = create_deep_agent("scripted:" + sys.argv[1], [price], name="seller")
    runner = InMemoryRunner(agent=agent, app_name="shop")
    events = await runner.run_debug("What does it cost?", quiet=True)
    answers = [part.text for event in events for part in event.content.parts if part.text]
    modules = [{names}]
    own = [module.OWN for module in modules]
    print(answers[-1], set(own), len(own), JobSpec(agent="a", description="b").agent)

asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("OWN = 'mine'")
    (folder / "program.py").write_text(PROGRAM.format(names=", ".join(NAMES)))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["program.py"], id="path", marks=pytest.mark.slow),
        pytest.param(["-m", "program"], id="module", marks=pytest.mark.slow),
    ],
)
def test_a_project_with_packages_of_our_folders_names_uses_its_own_and_ours(
    project: Path, tmp_path: Path, arguments: list[str]
) -> None:
    script = write_script(
        tmp_path,
        {
            "agent": "seller",
            **conversation("", calls(call("price", item="bread")), says("it costs: mine")),
        },
    )

    done = subprocess.run(
        [sys.executable, *arguments, str(script)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.stdout.splitlines()[-1:] == [f"it costs: mine {{'mine'}} {len(NAMES)} a"], (
        done.stderr
    )
