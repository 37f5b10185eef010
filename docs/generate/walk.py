"""`python -m docs.generate.walk` draws `docs/images/walk.svg`: the files that a job passes through.

`docs/how-it-works.md` names the files and, in each, the functions to read; the arrows are found in
the code. There is one from a function to another where the first calls the other's name, and its
file imports the other's. Two ways lead against the imports: a call of a port (a `Protocol` of the
caller's file), and a Celery message, to the function that is registered under the constant that the
sender names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/how-it-works.md"
PICTURE = REPOSITORY / "docs/images/walk.svg"

WIDTH, BOX, GAP = 940, 400, 34
"""Pixels of the picture, of a file's box, and between two boxes."""
LINE, TOP = 17, 50
"""Pixels of a line of text, and above the first box."""
LEFT = {"orchestrator": 20, "workers": WIDTH - BOX - 20}
"""Where the column of a side begins."""
STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}"
    ".side{font-weight:bold;fill:#57606a}.stop{font-weight:bold}"
    ".box{fill:#f6f8fa;stroke:#8c959f}.box.stop{fill:#ddf4ff;stroke:#1f6feb;stroke-width:1.5}"
    ".arrow{fill:none;stroke:#57606a;stroke-width:1.3;marker-end:url(#tip)}"
    ".back{stroke-dasharray:5 3}"
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    'width="{width}" height="{height}" role="img">'
)
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#57606a"/></marker></defs>'
)


@dataclass
class Stop:
    """A file of the walk."""

    path: str
    """Relative to the repository."""
    number: int | None
    """Its place among the files to read; None: it is met between two of them."""
    functions: list[str] = field(default_factory=list)
    """The functions to read, as `name` or `Class.name`."""

    @property
    def side(self) -> str:
        """Whose it is: `orchestrator` or `workers`."""
        return self.path.partition("/")[0]

    @cached_property
    def _definitions(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        for node in _tree(self.path).body:
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for one in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[owner + one.name] = one
        return found

    def missing(self) -> list[str]:
        """Return the functions that the file does not define."""
        return [name for name in self.functions if name not in self._definitions]

    def calls(self, by: str, other: Stop, to: str) -> bool:
        """Return whether a function of this file leads to one of another file.

        Args:
            by: The function.
            other: The other file.
            to: Its function.
        """
        nodes = [node for node in ast.walk(self._definitions[by]) if isinstance(node, ast.Call)]
        name = to.rpartition(".")[2]
        if any(_name(node.func) == name for node in nodes):
            return self.imports(other) or (name in self._port and other.imports(self))
        sent = {_name(argument) for node in nodes for argument in node.args}
        constants = {one for one in sent if one.isupper()} & other.registered_under(to)
        return bool(constants) and other.imports(self)

    @cached_property
    def _port(self) -> set[str]:
        """The methods of the file's protocols."""
        return {
            name.partition(".")[2]
            for node in _tree(self.path).body
            if isinstance(node, ast.ClassDef) and "Protocol" in map(_name, node.bases)
            for name in self._definitions
            if name.startswith(f"{node.name}.")
        }

    def registered_under(self, function: str) -> set[str]:
        """Return the names that a function's decorators mention."""
        decorators = self._definitions[function].decorator_list
        return {_name(node) for one in decorators for node in ast.walk(one)}

    def imports(self, other: Stop) -> bool:
        """Return whether this file imports something that the other one defines."""
        return other.path in imported_files(self.path)


@dataclass(frozen=True, order=True)
class Arrow:
    """A call from a function of one file to one of another."""

    caller: str
    """As `path:function`."""
    called: str


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))


@cache
def imported_files(path: str) -> frozenset[str]:
    """Return the files of ours that define what a file imports.

    Args:
        path: The file, relative to the repository.
    """
    return frozenset(
        file
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (file := _file_of(_absolute(path, node), alias.name))
    )


def _absolute(path: str, node: ast.ImportFrom) -> str:
    """Return the module that an import names, as a path from the repository's root."""
    module = (node.module or "").removeprefix("fanout.").replace(".", "/")
    folder = path.split("/")[: -node.level] if node.level else []
    return "/".join([*folder, *filter(None, [module])])


def _file_of(module: str, name: str) -> str | None:
    """Return the file that defines a name, also one that is passed on by the door of its package.

    Args:
        module: The module that it is imported from, as a path.
        name: The name.
    """
    for file in (f"{module}/{name}.py", f"{module}.py"):
        if (REPOSITORY / file).is_file():
            return file
    for door in (f"{module}/__init__.pyi", f"{module}/__init__.py"):
        if (REPOSITORY / door).is_file():
            for node in ast.walk(_tree(door)):
                if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
                    return _file_of(_absolute(door, node), name)
    return None


def stops(page: str | None = None) -> list[Stop]:
    """Return the files that the page names, in its order, each with the functions to read.

    In the numbered list of the page's walk the first file of an item is one to read; others are met
    on the way. A function belongs to the file that is named before it.

    Args:
        page: The text; None: that of the page.
    """
    text = PAGE.read_text(encoding="utf-8") if page is None else page
    found: dict[str, Stop] = {}
    for number, item in re.findall(
        r"^(\d+)\. (.*?)(?=^\d+\. |^\n\S|\Z)", text, re.DOTALL | re.MULTILINE
    ):
        here: Stop | None = None
        for span in re.findall(r"`([^`]+)`", item):
            if span.endswith(".py"):
                place = int(number) if here is None else None
                here = found.setdefault(span, Stop(span, place))
            elif span.endswith("()") and here is not None:
                here.functions.append(span.removesuffix("()"))
    return [*found.values()]


def arrows(walk: Sequence[Stop]) -> list[Arrow]:
    """Return all calls between the functions of different files of the walk, as the code has them.

    Args:
        walk: The files.
    """
    return [
        Arrow(f"{caller.path}:{by}", f"{called.path}:{to}")
        for caller in walk
        for called in walk
        if caller is not called
        for by in caller.functions
        for to in called.functions
        if caller.calls(by, called, to)
    ]


def picture(walk: Sequence[Stop]) -> str:
    """Return the picture of the walk, as SVG.

    Args:
        walk: The files.
    """
    tops, bottom = {}, dict.fromkeys(LEFT, TOP)
    for stop in walk:
        tops[stop.path] = bottom[stop.side]
        bottom[stop.side] += _height(stop) + GAP
    height = max(bottom.values())
    lines = [
        SVG.format(width=WIDTH, height=height),
        "<title>The files that a job passes through, and who calls whom</title>",
        f"<style>{STYLE}</style>",
        TIP,
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *(f'<text class="side" x="{x}" y="28">{side}/</text>' for side, x in LEFT.items()),
    ]
    for stop in walk:
        lines += _box(stop, tops[stop.path])
    lines += [_line(arrow, walk, tops) for arrow in arrows(walk)]
    return "\n".join([*lines, "</svg>", ""])


def drawn(svg: str) -> list[Arrow]:
    """Return the arrows that a picture has.

    Args:
        svg: The picture.
    """
    return [Arrow(*one) for one in re.findall(r"<!-- (\S+) calls (\S+) -->", svg)]


def _height(stop: Stop) -> int:
    return LINE * (len(stop.functions) + 1) + 12


def _box(stop: Stop, top: int) -> list[str]:
    kind = " stop" if stop.number else ""
    x, path = LEFT[stop.side], stop.path.partition("/")[2]
    title = f"{stop.number}  {path}" if stop.number else path
    return [
        f'<rect class="box{kind}" x="{x}" y="{top}" width="{BOX}" height="{_height(stop)}" rx="5"/>',
        f'<text class="{kind.strip()}" x="{x + 12}" y="{top + LINE + 2}">{escape(title)}</text>',
        *(
            f'<text x="{x + 30}" y="{top + LINE * (row + 2) + 2}">{escape(name)}</text>'
            for row, name in enumerate(stop.functions)
        ),
    ]


def _line(arrow: Arrow, walk: Sequence[Stop], tops: dict[str, int]) -> str:
    """Return an arrow between the lines of two functions; one that leads back up is dashed."""
    by_path = {stop.path: stop for stop in walk}
    (from_path, by), (to_path, to) = (one.split(":") for one in (arrow.caller, arrow.called))
    start, end = by_path[from_path], by_path[to_path]
    start_y, end_y = (
        tops[stop.path] + LINE * (stop.functions.index(name) + 2) - 2
        for stop, name in ((start, by), (end, to))
    )
    kind = "arrow" if walk.index(start) < walk.index(end) else "arrow back"
    goes_right, comes_left = start.side == "orchestrator", end.side == "orchestrator"
    x1 = LEFT[start.side] + (BOX if goes_right else 0)
    x2 = LEFT[end.side] + (BOX if comes_left else 0)
    bend = 16 + abs(end_y - start_y) // 12
    c1, c2 = x1 + (bend if goes_right else -bend), x2 + (bend if comes_left else -bend)
    path = f"M{x1} {start_y}C{c1} {start_y} {c2} {end_y} {x2} {end_y}"
    return f'<!-- {arrow.caller} calls {arrow.called} -->\n<path class="{kind}" d="{path}"/>'


if __name__ == "__main__":
    PICTURE.write_text(picture(stops()), encoding="utf-8")
