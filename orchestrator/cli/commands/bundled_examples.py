"""The examples that fanout ships: each a sample workspace, a goal and a script of replies."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ...configuration.bundled import bundled
from ..terminal.exit_codes import UsageProblem

EXAMPLES = bundled("config") / "examples"

DEMO = "bakery"
"""The example that `fanout demo` runs."""


@dataclass(frozen=True)
class Example:
    """A bundled folder: `workspace/`, `goal.txt`, `script.yaml`, `README.md`.

    It may also have agent definitions (`agents/`), a check command (`check.txt`), which fails
    before the goal is reached and succeeds afterwards, and one that verifies the agents' changes
    (`verify_merges.txt`), which always succeeds.
    """

    folder: Path

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.folder.name.replace("_", "-")

    @property
    def title(self) -> str:
        """The title of its README."""
        return self._text("README.md").partition("\n")[0].removeprefix("# ").strip()

    @property
    def goal(self) -> str:
        """The coordinator's task."""
        return " ".join(self._text("goal.txt").split())

    @property
    def check(self) -> str | None:
        """The check command; None for an example without one."""
        return self._text("check.txt").strip() or None

    @property
    def verify_merges(self) -> str | None:
        """The command that verifies the agents' changes; None: nothing is verified."""
        return self._text("verify_merges.txt").strip() or None

    @property
    def agents_dir(self) -> Path | None:
        """The folder of its agent definitions; None for one that uses the shipped agents only."""
        path = self.folder / "agents"
        return path if path.is_dir() else None

    @property
    def scripted_model(self) -> str:
        """The model that answers from the example's script."""
        return f"scripted:{self.folder / 'script.yaml'}"

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def copy_workspace(self, target: Path) -> None:
        """Copy the sample workspace into a folder, which is created when it is missing.

        Raises:
            UsageProblem: the folder is not empty, or it cannot be written to.
        """
        sample, ignored = self.folder / "workspace", shutil.ignore_patterns("__pycache__")
        try:
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise UsageProblem(f"{target} is not empty: name an empty or a new folder.")
            shutil.copytree(sample, target, dirs_exist_ok=True, ignore=ignored)
        except OSError as error:
            reason = f"The sample cannot be copied to {target}: {error.strerror}."
            raise UsageProblem(reason) from error

    def changed_files(self, folder: Path) -> list[str]:
        """Return the relative paths of files in a copy that are new or differ from the sample."""
        sample = self.folder / "workspace"
        paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        return [
            str(path)
            for path in paths
            if not (sample / path).is_file()
            or (folder / path).read_bytes() != (sample / path).read_bytes()
        ]


def all_examples() -> list[Example]:
    """Return the bundled examples, sorted by folder."""
    return [Example(path.parent) for path in sorted(EXAMPLES.glob("*/goal.txt"))]


def find_example(name: str) -> Example:
    """Return the example of this name, written with hyphens or underscores.

    Raises:
        UsageProblem: no example has this name.
    """
    found = {one.name: one for one in all_examples()}
    key = name.replace("_", "-")
    if key not in found:
        raise UsageProblem(f"There is no example {name!r}. There are: {', '.join(found)}.")
    return found[key]
