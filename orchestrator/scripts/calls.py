"""The calls of a script: their arguments, and their identity.

A call is known by its arguments and by how many equal calls came before it, never by its number in
time: after a restart results may arrive in another order, and other calls would have its number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any

from pydantic import JsonValue

from .values import Handle, Result, plain

AGENT = "agent"
"""The kind of the calls that become a job each: `agent` and `start`."""
BEST_OF = "best_of"
FILES = ("land", "keep", "discard")
"""What becomes of the changes of a call: they land at the end of its phase, wait for `land`, or are
dropped."""
MOST_CANDIDATES = 20
"""The most jobs of one `best_of`."""


_IS_OBJECT = re.compile(
    r"<(function|coroutine|bound method|built-in)[^<>]{0,200}( at 0x[0-9a-f]+)?>"
)
"""How the interpreter passes what is no value: as a text."""


def _agent_arguments(**first: Any) -> dict[str, Any]:
    return {
        **first,
        "agent": "general-purpose",
        "context": "",
        "output_schema": None,
        "verify": "",
        "model": "",
        "timeout_seconds": None,
        "label": "",
    }


_REQUIRED = Parameter.empty
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "agent": {**_agent_arguments(task=_REQUIRED), "files": "land", "check": True},
    "start": {**_agent_arguments(task=_REQUIRED), "files": "land", "check": True},
    "best_of": {
        **_agent_arguments(count=_REQUIRED, task=_REQUIRED),
        "judge": "",
        "files": "land",
        "check": True,
    },
    "first": {"handles": _REQUIRED},
    "land": {"results": _REQUIRED},
    "read": {"path": _REQUIRED},
    "files": {"pattern": "**/*"},
    "run": {"command": _REQUIRED, "timeout_seconds": None},
    "ask": {"question": _REQUIRED, "options": None},
    "budget": {},
    "phase": {"name": _REQUIRED},
    "log": {"text": _REQUIRED},
}
"""Function -> its arguments in order, with their defaults."""
FUNCTIONS = tuple(_ARGUMENTS)
"""What a script can call."""
AT_ONCE = ("start", "phase", "log")
"""The functions that are not awaited."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "count": (int,),
    "options": (list, tuple, type(None)),
    "output_schema": (dict, type(None)),
    "timeout_seconds": (int, float, type(None)),
    "check": (bool,),
    "handles": (list, tuple),
    "results": (Result, list, tuple),
}
"""Argument -> its types; all others are texts."""


class BadCall(Exception):
    """The arguments of a call cannot be used; the text is for the script's author."""


@dataclass(frozen=True)
class ScriptCall:
    """One call of a script."""

    function: str
    arguments: Mapping[str, Any]
    """All arguments, also those that have their defaults."""
    key: str
    """Its identity within the script."""

    @property
    def kind(self) -> str:
        """Its function; `agent` for `start` too, which is the same call."""
        return _kind(self.function)

    @property
    def job_count(self) -> int:
        """How many jobs it becomes: 0 for what is done by the script's own job."""
        if self.kind == BEST_OF:
            return int(self.arguments["count"])
        return int(self.kind == AGENT)

    @property
    def is_checked(self) -> bool:
        """Whether a result that is no success is raised."""
        return bool(self.arguments.get("check"))

    @property
    def label(self) -> str:
        """What people read of it: its label, or how its task begins."""
        given = self.arguments
        text = str(given.get("label") or given.get("task") or next(iter(given.values()), ""))
        return " ".join(text.split())[:60]


@dataclass
class CallNames:
    """Names the calls of one run of a script."""

    _made: Counter[str] = field(default_factory=Counter)

    def named(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ScriptCall:
        """Return a call with its identity.

        Raises:
            BadCall: Its arguments cannot be used.
        """
        arguments = _bound(function, args, kwargs)
        digest = _digest([_kind(function), identity(arguments)])
        self._made[digest] += 1
        return ScriptCall(function, arguments, f"{digest}/{self._made[digest]}")


def identity(arguments: Mapping[str, Any]) -> JsonValue:
    """Return the arguments as JSON; a result or a handle counts by its job."""
    return {name: plain(value) for name, value in arguments.items()}


def _kind(function: str) -> str:
    return AGENT if function == "start" else function


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def _bound(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name."""
    declared = _ARGUMENTS[function]
    try:
        bound = _SIGNATURES[function].bind(*args, **kwargs)
    except TypeError as error:
        raise BadCall(f"{function}(): {error}") from None
    bound.apply_defaults()
    given = {name: _bound_value(function, name, bound.arguments[name]) for name in declared}
    _check_values(function, given)
    return given


def _bound_value(function: str, name: str, value: Any) -> Any:
    types = _TYPES.get(name, (str,))
    wrong = isinstance(value, bool) and bool not in types
    if not isinstance(value, types) or wrong:
        known = " or ".join(_NAMES.get(one, one.__name__) for one in types)
        raise BadCall(f"{function}(): {name} has to be {known}, not {_described(value)}.")
    try:
        text = json.dumps(plain(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = "<function>"
    if _IS_OBJECT.search(text):
        raise BadCall(
            f"{function}(): {name} has a value that is not JSON, such as a function or a coroutine: "
            "await it first, and pass what it returns."
        )
    return value


def _check_values(function: str, given: Mapping[str, Any]) -> None:
    for name in ("task", "path", "command", "question", "name"):
        if name in given and not given[name].strip():
            raise BadCall(f"{function}(): {name} is empty.")
    if given.get("files") not in (None, *FILES) and function != "files":
        raise BadCall(f"{function}(): files has to be one of {', '.join(FILES)}.")
    if not 1 <= given.get("count", 1) <= MOST_CANDIDATES:
        raise BadCall(f"{function}(): count has to be 1 to {MOST_CANDIDATES}.")
    if (given.get("timeout_seconds") or 1) <= 0:
        raise BadCall(f"{function}(): timeout_seconds has to be above 0.")
    if function == "first" and not all(isinstance(one, Handle) for one in given["handles"]):
        raise BadCall("first() takes handles, which start() returns.")
    if function == "first" and not given["handles"]:
        raise BadCall("first() takes one handle at least.")
    if function == "land":
        results = given["results"]
        listed = [results] if isinstance(results, Result) else results
        if not all(isinstance(one, Result) for one in listed):
            raise BadCall("land() takes results of agent(..., files='keep').")
    if function == "ask" and not all(isinstance(one, str) for one in given["options"] or ()):
        raise BadCall("ask(): options has to be a list of texts.")


def _described(value: Any) -> str:
    return _NAMES.get(type(value), "a value of another kind")


_NAMES: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    list: "a list",
    tuple: "a tuple",
    dict: "a dict",
    type(None): "None",
    Result: "a result",
    Handle: "a handle",
}

_KEYWORD_ONLY = frozenset({"agent", "start", "best_of"})


def _signature(function: str) -> Signature:
    """Return a function's signature: of those with many arguments the optional ones are named."""
    return Signature(
        [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY
                if function in _KEYWORD_ONLY and default is not _REQUIRED
                else Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
            )
            for name, default in _ARGUMENTS[function].items()
        ]
    )


_SIGNATURES = {function: _signature(function) for function in _ARGUMENTS}
