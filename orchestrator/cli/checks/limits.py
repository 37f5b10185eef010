"""Every limit with its value, unit and reason, read from the source code.

A limit is a numeric constant whose name has a limit's prefix or unit (`MAX_…`, `…_SECONDS`), or a
numeric field of the settings. Its reason is the docstring below it. The modules are parsed,
not imported, so no limit can be missing from the list or out of date.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("orchestrator", "workers")

SETTINGS = "orchestrator/configuration/settings.py"

UNITS = ("seconds", "bytes", "characters", "tokens", "lines")

_IS_LIMIT = re.compile(rf"_?(MAX|MIN|LONGEST|MOST|LEAST)_|.*_({'|'.join(UNITS).upper()}|CALLS)$")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: lambda left, right: int(left) << int(right),
}


class Limit(NamedTuple):
    """One limit."""

    name: str
    value: float | None
    """The value; None: unlimited, unless another setting limits it."""
    unit: str
    where: str
    """The path of the module that defines it."""
    reason: str
    """The first sentence of its docstring; empty where that is missing."""

    @property
    def title(self) -> str:
        """The name with its folder and module, because several modules may use one name."""
        if self.where == SETTINGS:
            return self.name
        return ".".join([*Path(self.where).with_suffix("").parts[-2:], self.name])


class LimitSource:
    """The parsed modules of the installed packages."""

    def __init__(self) -> None:
        self.bodies = {where: ast.parse(text).body for where, text in _modules()}
        """The statements of each module, by path."""
        pairs = [_assigned(statement) for body in self.bodies.values() for statement in body]
        self._constants = {
            name: value for name, value in pairs if name.isupper() and value is not None
        }

    def constants(self) -> list[Limit]:
        """Return the limits among the constants of all modules, ordered by module."""
        return [
            Limit(name, self._number(value), _unit(name), where, reason)
            for where, body in self.bodies.items()
            for name, value, reason in _documented(body)
            if _IS_LIMIT.match(name) and name.isupper() and not _is_text(value)
        ]

    def settings(self) -> list[Limit]:
        """Return the numeric settings of jobs, workers and the installation, with defaults."""
        inherited = {
            field.name: field
            for model in ("Limits", "TreeBounds")
            for field in self._fields("orchestrator/jobs/spec.py", model)
        }
        own = {field.name: field for field in self._fields(SETTINGS, "LimitSettings")}
        limits = [_overriding(own.get(name), inherited.get(name)) for name in {**inherited, **own}]
        ceilings = self._fields("orchestrator/jobs/ceilings.py", "Ceilings")
        workers, top = self._fields(SETTINGS, "WorkerSettings"), self._fields(SETTINGS, "Settings")
        return [
            field._replace(name=prefix + field.name.upper(), where=SETTINGS)
            for prefix, fields in (
                ("FANOUT_LIMITS__", limits),
                ("FANOUT_CEILINGS__", ceilings),
                ("FANOUT_WORKER__", workers),
                ("FANOUT_", top),
            )
            for field in fields
        ]

    def _fields(self, where: str, name: str) -> list[Limit]:
        classes = [
            node
            for node in self.bodies[where]
            if isinstance(node, ast.ClassDef) and node.name == name
        ]
        return [
            Limit(field, self._number(_default(value)), _unit(field), where, reason)
            for found in classes
            for field, value, reason in _documented(found.body, only_numbers=True)
        ]

    def _number(self, expression: ast.expr | None) -> float | None:
        """Evaluate a constant expression; None when it is not a number."""
        match expression:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.BinOp() if type(expression.op) in _OPERATORS:
                left, right = self._number(expression.left), self._number(expression.right)
                if left is None or right is None:
                    return None
                return _OPERATORS[type(expression.op)](left, right)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._number(self._constants.get(name))
        return None


def written(limit: Limit) -> str:
    """Return a limit's value for people, with its unit: `2 GiB`, `0.075 s`, `-` for none."""
    if limit.value is None:
        return "-"
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if limit.unit == "bytes" and limit.value >= 1024**power and limit.value % 1024**power == 0:
            return f"{limit.value / 1024**power:g} {name}"
    return f"{limit.value:,.10g} {'s' if limit.unit == 'seconds' else limit.unit}".strip()


def _modules() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        spec = find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            folder = Path(location)
            for path in sorted(folder.rglob("*.py")):
                where = path.relative_to(folder.parent).as_posix()
                if where.startswith("orchestrator/data/"):
                    continue  # the sample programs that a wheel carries
                yield where, path.read_text(encoding="utf-8")


def _documented(
    body: Sequence[ast.stmt], *, only_numbers: bool = False
) -> Iterator[tuple[str, ast.expr | None, str]]:
    """Yield name, value and reason of each assignment."""
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        name, value = _assigned(statement)
        annotation = (
            ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""
        )
        if name and not (only_numbers and not re.search(r"\b(int|float)\b", annotation)):
            yield name, value, _first_sentence(following)


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return "", None
    return (target.id, statement.value) if isinstance(target, ast.Name) else ("", None)


def _is_text(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _default(value: ast.expr | None) -> ast.expr | None:
    """Return the default of a field, written alone or as an argument of `Field`."""
    if not isinstance(value, ast.Call):
        return value
    return next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)


def _overriding(own: Limit | None, inherited: Limit | None) -> Limit:
    """Return a derived class's field: its own default, and the inherited reason if it has none."""
    field = own or inherited
    if field is None:
        raise ValueError("a field is in neither class")
    return field if field.reason or inherited is None else field._replace(reason=inherited.reason)


def _unit(name: str) -> str:
    last = name.lower().rpartition("_")[2]
    return last if last in UNITS else ""


def _first_sentence(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
    return ""
