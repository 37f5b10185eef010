"""The repository's files, functions and folders.

`python -m tests.architecture.sources` prints the largest. It is a report and fails nothing: code is
cut by concept, and a size is only a reason to look again.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("fanout", "orchestrator", "workers")
SHOWN = 10


class Size(NamedTuple):
    count: int
    """Lines of a file or a function, modules of a folder."""
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


def file_lengths() -> list[Size]:
    return sorted(
        (Size(len(text.splitlines()), name) for name, text in package_sources()), reverse=True
    )


def function_lengths() -> list[Size]:
    """The lengths of all functions, without their docstrings."""
    return sorted(
        (
            Size(_lines(node) - _docstring_lines(node), f"{name}:{node.name}")
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


def folder_widths() -> list[Size]:
    """How many modules each folder has, without its `__init__.py`."""
    paths = [PurePosixPath(name) for name, _ in package_sources()]
    widths = Counter(str(path.parent) for path in paths if path.name != "__init__.py")
    return sorted((Size(count, folder) for folder, count in widths.items()), reverse=True)


def main() -> None:
    report = {
        "Longest files": file_lengths(),
        "Longest functions": function_lengths(),
        "Folders with the most modules": folder_widths(),
    }
    for title, sizes in report.items():
        print(f"{title}:")
        for size in sizes[:SHOWN]:
            print(f"  {size.count:4}  {size.where}")


if __name__ == "__main__":
    main()
