"""The repository's files and functions.

`python -m tests.architecture.sources` lists the longest.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("fanout", "orchestrator", "workers")
SHOWN = 10


class Length(NamedTuple):
    lines: int
    where: str


def repository_files() -> list[str]:
    """What is in the repository or would be with the next commit; paths relative to it."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=REPOSITORY, check=True, capture_output=True)
    names = done.stdout.decode().split("\0")
    return [name for name in names if name and (REPOSITORY / name).is_file()]


def package_sources() -> Iterator[tuple[str, str]]:
    """Path and text of each Python file of ours."""
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            yield name, path.read_text(encoding="utf-8")


def file_lengths() -> list[Length]:
    return sorted(
        (Length(len(text.splitlines()), name) for name, text in package_sources()), reverse=True
    )


def function_lengths() -> list[Length]:
    """The lengths of all functions, without their docstrings."""
    return sorted(
        (
            Length(_lines(node) - _docstring_lines(node), f"{name}:{node.name}")
            for name, text in package_sources()
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        reverse=True,
    )


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return 0 if ast.get_docstring(node) is None else _lines(node.body[0])


def main() -> None:
    for title, lengths in (("files", file_lengths()), ("functions", function_lengths())):
        print(f"Longest {title}:")
        for length in lengths[:SHOWN]:
            print(f"  {length.lines:4}  {length.where}")


if __name__ == "__main__":
    main()
