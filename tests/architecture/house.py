"""`make house` prints the size and the habits of the code. It is a report and fails nothing.

Code is cut by concept: a size is only a reason to look again. What must not be (two classes of one
name, circles, forbidden imports) is a test or a contract.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from docs.generate.walk import imported_files
from tests.architecture.sources import REPOSITORY, package_sources, repository_files

SIDES = ("fanout/", "orchestrator/", "workers/")
PRODUCT = (".py", ".lua", ".js", ".css")
PREPOSITION = re.compile(r"_(of|in|at|for|from|as|with|before|after|on|to|by)$")
FRAGMENT = re.compile(r"(Of|In|As|By|With|For|Until|Since|To|From|At) ")
DIALECT = re.compile(
    r"\b(told|mend(s|ed)?|anew|beside|unharmed|stands|goes on|by itself|left at home|in hand)\b",
    re.IGNORECASE,
)
"""Words that this project once used in a sense of its own."""
SHOWN = 10


@cache
def product_files() -> list[str]:
    """The product's files; `fanout/` links to the two sides, whose files are counted once."""
    names = [name for name in repository_files() if name.startswith(SIDES)]
    return [name for name in names if name.endswith(PRODUCT) and "/tests/" not in name]


def lines_of(name: str) -> int:
    return len((REPOSITORY / name).read_text(encoding="utf-8", errors="replace").splitlines())


def public_classes() -> dict[str, set[Path]]:
    """The files that define a public class, by its name."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path, text in package_sources():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add((REPOSITORY / path).resolve())
    return places


@cache
def modules_with_one_importer() -> list[str]:
    """Counted are files that use what a module defines, also through the door of its package."""
    modules = [name for name in product_files() if name.endswith(".py") and not is_door(name)]
    found = Counter(one for name in modules for one in imported_files(name) - {name})
    return [name for name in modules if found[name] == 1]


def is_door(name: str) -> bool:
    return name.endswith(("/__init__.py", "/__main__.py"))


def attribute_docstrings(tree: ast.AST) -> Iterator[str]:
    """The strings below the constants and fields of a file."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            is_field = isinstance(before, ast.Assign | ast.AnnAssign)
            if is_field and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield str(after.value.value)


def table() -> list[tuple[str, object]]:
    """What is counted, and its number."""
    files = product_files()
    python = [name for name in files if name.endswith(".py")]
    texts = {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in python}
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    functions = [
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    splats = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        if any(isinstance(a, ast.Starred) and isinstance(a.value, ast.Tuple) for a in node.args)
    ]
    docstrings = [one for text in texts.values() for one in attribute_docstrings(ast.parse(text))]
    pages = [name for name in repository_files() if re.fullmatch(r"(docs/)?[\w-]+\.md", name)]
    prose = [*texts.values(), *((REPOSITORY / name).read_text("utf-8") for name in pages)]
    clashes = [name for name, places in public_classes().items() if len(places) > 1]
    tests = [name for name in repository_files() if re.fullmatch(r"tests/.*\.py", name)]
    return [
        ("lines of the product (Python, Lua, page)", sum(map(lines_of, files))),
        ("files", len(files)),
        ("folders", len({name.rpartition("/")[0] for name in files})),
        ("parts of a path, at most", max(name.count("/") + 1 for name in files)),
        ("modules with one importer", len(modules_with_one_importer())),
        ("public classes that stand for more than one thing", len(clashes)),
        ("functions that end in a preposition", _share(functions, PREPOSITION.search)),
        ("docstrings of fields that are fragments", _share(docstrings, FRAGMENT.match)),
        ("calls that splat a tuple", len(splats)),
        ("words of the dialect", sum(len(DIALECT.findall(text)) for text in prose)),
        ("lines of tests", sum(map(lines_of, tests))),
    ]


def _share(found: list[str], is_one: Callable[[str], object]) -> str:
    return f"{sum(bool(is_one(one)) for one in found)} of {len(found)}"


def largest() -> dict[str, list[tuple[int, str]]]:
    """The largest of each kind, with their sizes."""
    files = product_files()
    functions = [
        (node.end_lineno - node.lineno + 1, f"{name}:{node.name}")
        for name in files
        if name.endswith(".py")
        for node in ast.walk(ast.parse((REPOSITORY / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    modules = Counter(name.rpartition("/")[0] for name in files if not is_door(name))
    return {
        "Longest files": [(lines_of(name), name) for name in files],
        "Longest functions, with their docstrings": functions,
        "Folders with the most modules": [(count, name) for name, count in modules.items()],
        "Largest modules with one importer": [
            (lines_of(name), name) for name in modules_with_one_importer()
        ],
    }


def main() -> None:
    for name, value in table():
        print(f"{name:52}{value!s:>16}")
    for title, sizes in largest().items():
        print(f"\n{title}:")
        for size, where in sorted(sizes, reverse=True)[:SHOWN]:
            print(f"  {size:5}  {where}")


if __name__ == "__main__":
    main()
