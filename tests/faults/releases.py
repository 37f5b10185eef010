"""Releases of fanout side by side; earlier ones are taken out of the repository's history."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked import REPOSITORY
from tests.served import ServerProcess
from tests.services import Installation, WorkerProcess

LISTED = Path(__file__).with_name("releases.toml")


@dataclass(frozen=True)
class Release:
    """One release, and its processes. Its code is found before that of the virtual environment."""

    name: str
    tree: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.tree), "PYTHONSAFEPATH": "1"}

    def start_worker(self, place: Installation, concurrency: int) -> WorkerProcess:
        return place.start_worker(concurrency, forked=self._is_here, **self.environment)

    def server(self, place: Installation) -> ServerProcess:
        return ServerProcess(
            place, f"server-{self.name}", forked=self._is_here, settings=self.environment
        )

    @property
    def _is_here(self) -> bool:
        return self.tree == REPOSITORY

    async def command(self, place: Installation, *arguments: str) -> Any:
        """Run a command of its `fanout` with --json, and return the document that it prints."""
        return json.loads(await self._python(place, "-m", "fanout", *arguments, "--json"))

    async def run(self, place: Installation, program: str) -> str:
        """Run a program that imports it, and return what it prints."""
        return await self._python(place, "-c", program)

    async def _python(self, place: Installation, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *arguments),
            env=place.environment | self.environment,
            cwd=place.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said, errors = await process.communicate()
        assert process.returncode == 0, (self.name, arguments, errors.decode()[-3000:])
        return said.decode()


def listed_releases() -> Sequence[dict[str, Any]]:
    """Return the earlier releases as `releases.toml` has them."""
    found: Sequence[dict[str, Any]] = tomllib.loads(LISTED.read_text())["release"]
    return found


THIS_RELEASE = Release("this", REPOSITORY)


def earlier_file(listed: dict[str, Any], path: str) -> str:
    """Return a text file of an earlier release.

    Raises:
        LookupError: The history of this clone does not go back so far.
    """
    return _git(listed, "show", f"{listed['commit']}:{path}")


def earlier_release(listed: dict[str, Any], folder: Path) -> Release:
    """Return an earlier release, whose files are put into a folder.

    Raises:
        LookupError: The history of this clone does not go back so far.
    """
    commit = listed["commit"]
    archive = folder / f"{commit}.tar"
    _git(listed, "archive", "--format=tar", f"--output={archive}", commit)
    tree = folder / commit
    with tarfile.open(archive) as opened:
        opened.extractall(tree, filter="data")
    return Release(f"layout-{listed['layout']}", tree)


def _git(listed: dict[str, Any], *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LookupError(
            f"This clone lacks commit {listed['commit']}, which stands for wire version "
            f"{listed['wire']} in {LISTED.relative_to(REPOSITORY)}. Get the whole history: "
            f"git fetch --unshallow. Git says: {done.stderr.strip()}"
        )
    return done.stdout
