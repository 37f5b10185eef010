"""What a script gets from its calls, and their forms as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any

from pydantic import JsonValue


@dataclass(frozen=True)
class Handle:
    """A call that was started; `first` waits for it."""

    id: str
    """The id of its job."""
    label: str = ""


@dataclass(frozen=True)
class Result:
    """What became of a call of an agent."""

    id: str
    """The id of its job."""
    ok: bool
    """Whether the job succeeded."""
    state: str
    summary: str = ""
    output: JsonValue = None
    error: str = ""
    files: list[str] = field(default_factory=list)
    """The files that it changed."""
    verified: bool | None = None
    """Whether its verification passed; None: it has none."""
    cost_usd: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    label: str = ""


@dataclass(frozen=True)
class Ran:
    """What became of a command."""

    ok: bool
    exit_code: int
    output: str


@dataclass(frozen=True)
class LandReport:
    """What became of the changes of some results."""

    ok: bool
    """Whether all of them are in."""
    landed: list[str] = field(default_factory=list)
    """The ids of the results whose changes are in the job's files now."""
    conflicts: list[str] = field(default_factory=list)
    """Why others are not, or not completely."""


@dataclass(frozen=True)
class Spent:
    """What the job and all its children have used of its budgets, and what is left."""

    used: dict[str, float]
    left: dict[str, float]


Value = Handle | Result | Ran | LandReport | Spent
VALUES: Mapping[str, type[Value]] = {
    "handle": Handle,
    "result": Result,
    "ran": Ran,
    "land_report": LandReport,
    "spent": Spent,
}
"""The name of a kind of value, as it is stored -> its class."""
_KIND = {kind: name for name, kind in VALUES.items()}


def stored(value: Any) -> JsonValue:
    """Return the answer to a call as JSON, from which `restored` makes it again."""
    if type(value) in _KIND:
        return {"kind": _KIND[type(value)], "value": asdict(value)}
    return {"value": value}


def restored(form: Mapping[str, Any]) -> Any:
    """Return the answer of which `stored` made this form; fields of later releases are ignored."""
    kind = VALUES.get(str(form.get("kind")))
    if kind is None:
        return form.get("value")
    known = {one.name for one in fields(kind)}
    return kind(**{name: value for name, value in form["value"].items() if name in known})


def plain(value: Any) -> Any:
    """Return a value of a script with its results and handles as JSON.

    In an argument a result is its job: what it says may be long, and is known by its id.
    """
    if isinstance(value, (Handle, Result)):
        return {"job": value.id}
    if type(value) in _KIND:
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def output_of(value: Any) -> Any:
    """Return the value of a whole script as JSON; results in it have all their fields.

    Raises:
        TypeError: Something in it is not JSON, such as a function or NaN.
    """
    if type(value) in _KIND:
        return {name: output_of(one) for name, one in asdict(value).items()}
    if isinstance(value, Mapping):
        return {_name(name): output_of(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [output_of(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        raise TypeError("it has a number that JSON lacks, such as NaN or an infinite one")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError("it has a value that is not JSON, such as a set, a function or an object")


def _name(name: Any) -> str:
    if isinstance(name, (str, int, float, bool)):
        return str(name)
    raise TypeError("a dict in it has keys that are no texts")
