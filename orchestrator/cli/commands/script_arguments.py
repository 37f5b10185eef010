"""The scripts that a person names, bundled ones too, and the values of `--input`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configuration.bundled import bundled
from ...spelling import did_you_mean
from ..terminal.exit_codes import UsageProblem

SCRIPTS = bundled("config") / "scripts"
MAX_INPUT_BYTES = 1024**2
"""The largest file of `--input`; the store refuses inputs that are too large for a job."""
_INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEY_ERROR = re.compile(r"KeyError: '?(\w+)'?$")
_DESCRIBED_INPUT = re.compile(r"(\w+): (.+)")


@dataclass(frozen=True)
class ScriptFile:
    """A script that was read."""

    path: Path
    source: str

    @property
    def name(self) -> str:
        """The name of a bundled script on the command line."""
        return self.path.stem.replace("_", "-")

    @property
    def title(self) -> str:
        """The first line of its docstring, else the name of its file."""
        return self._docstring().partition("\n")[0].strip() or self.path.name

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs that its docstring describes, each on a line `name: text`."""
        lines = self._docstring().splitlines()[1:]
        found = (_DESCRIBED_INPUT.fullmatch(line.strip()) for line in lines)
        return {match[1]: match[2] for match in found if match}

    @property
    def replies(self) -> Path | None:
        """The scripted model of a bundled script; None for others."""
        path = SCRIPTS / "replies" / f"{self.path.stem}.yaml"
        return path if self.path.parent == SCRIPTS and path.is_file() else None

    def missing_input(self, fault: str, given: Mapping[str, Any]) -> str | None:
        """Return the input that a script lacks, if that is its fault; None for other faults."""
        match = _KEY_ERROR.search(fault)
        name = match[1] if match else ""
        uses = re.search(rf"""inputs\[["']{re.escape(name)}["']\]""", self.source)
        return name if name and uses and name not in given else None

    def _docstring(self) -> str:
        try:
            return ast.get_docstring(ast.parse(self.source)) or ""
        except (SyntaxError, ValueError, RecursionError):
            return ""


def bundled_scripts() -> list[ScriptFile]:
    """Return the bundled scripts, sorted by name."""
    return [_read(path) for path in sorted(SCRIPTS.glob("*.py"))]


def read_script(name: str) -> ScriptFile:
    """Return the script of a file, or the bundled one of this name.

    Args:
        name: A path, or a bundled script's name with hyphens or underscores.

    Raises:
        UsageProblem: There is no such file and no such script, or it is not UTF-8 text.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return _read(path)
    names = [one.stem.replace("_", "-") for one in sorted(SCRIPTS.glob("*.py"))]
    wanted = name.replace("_", "-")
    if wanted in names:
        return _read(SCRIPTS / f"{wanted.replace('-', '_')}.py")
    raise UsageProblem(
        f"There is no file {name!r}, and no bundled script of this name."
        f"{did_you_mean(wanted, names)} The bundled ones are {', '.join(names)}."
    )


def _read(path: Path) -> ScriptFile:
    return ScriptFile(path, _text(path))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageProblem(f"{path} is not a text in UTF-8.") from None


def parse_inputs(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--input`: JSON, or else the text itself.

    Args:
        texts: Each `NAME=VALUE`, or `NAME=@FILE` for what a file holds.

    Raises:
        UsageProblem: One has another form or is given twice, or its file cannot be read.
    """
    inputs: dict[str, Any] = {}
    for given in texts:
        name, sign, value = given.partition("=")
        if not sign or not _INPUT_NAME.fullmatch(name):
            raise UsageProblem(
                f"--input is {given[:80]!r}; it has the form NAME=VALUE or NAME=@FILE."
            )
        if name in inputs:
            raise UsageProblem(f"--input {name} is given twice: give a list as JSON.")
        inputs[name] = _value(_file_text(value[1:]) if value.startswith("@") else value)
    return inputs


def _file_text(name: str) -> str:
    path = Path(name).expanduser()
    if path.is_file() and path.stat().st_size > MAX_INPUT_BYTES:
        raise UsageProblem(
            f"{path} is too large for an input (1 MiB at the most): the script can read() it from "
            "the workspace."
        )
    return _text(path)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
