"""One run of a script, from its beginning until it ends or has to wait.

The run is driven by what the interpreter stops for: a name, a call, or results. Each result is
settled alone: the interpreter lists pending calls in a random order, and a script that is given two
results together may go on with either of them first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from .calls import AT_ONCE, FUNCTIONS, BadCall, CallNames, ScriptCall
from .program import AGENT_FAILED, Interpreter, InvalidScript, as_interpreted, with_main
from .values import output_of

if TYPE_CHECKING:
    from pydantic_monty import MontyError

MAX_PRINTED = 400
"""The length of a printed line that is kept."""


class ScriptError(Exception):
    """The script has ended with an error; the text is for its author, with the line."""


@dataclass(frozen=True)
class SettledCall:
    """The end of one call."""

    call: ScriptCall
    value: Any = None
    error: str = ""
    """Why the call failed, which is raised; empty: it has a value."""
    exception: str = AGENT_FAILED
    """The name of the interpreter's exception that is raised then."""


@dataclass(frozen=True)
class ScriptValue:
    """The end of the script."""

    value: Any
    """The value of its last expression, as JSON."""


class Waits:
    """All branches wait for what has not arrived."""


class CallAnswers(Protocol):
    """Answers the calls of a script."""

    async def made(self, call: ScriptCall) -> None:
        """Take a call that is awaited later.

        Raises:
            BadCall: It cannot be done; the script gets the text.
        """

    async def at_once(self, call: ScriptCall) -> Any:
        """Return the answer to a call that is not awaited; `Waits()` if there is none yet.

        Raises:
            BadCall: It cannot be done; the script gets the text.
        """

    async def next(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        """Return the next end of a pending call, by key; None if the script has to wait.

        It is in the journal when it is returned.
        """


async def run_script(
    source: str,
    inputs: Mapping[str, Any],
    answers: CallAnswers,
    *,
    seed: str,
    agents: Mapping[str, str] | None = None,
    printed: list[str] | None = None,
) -> ScriptValue | Waits:
    """Run a script until it ends, or until all its branches wait.

    Args:
        source: The script.
        inputs: The value of `inputs`.
        answers: Answers its calls.
        seed: The beginning of its random numbers; the same for each run of a job.
        agents: The agents that it may name; its types are checked. None: they were checked before.
        printed: Gets what it prints, line by line.

    Raises:
        InvalidScript: It has faults that were found before it ran.
        ScriptError: It ended with an error.
    """
    monty = await asyncio.to_thread(_load)
    lines = _Lines([] if printed is None else printed)
    interpreter = Interpreter(agents, seed)
    try:
        async with interpreter as session:
            state = await interpreter.ask(
                session.feed_start,
                with_main(source),
                inputs={"inputs": dict(inputs)},
                print_callback=lines.add,
            )
            run = _Run(answers)
            while not isinstance(state, monty.MontyComplete):
                go_on = await run.step(state)
                if go_on is None:
                    return Waits()
                state = await interpreter.ask(go_on)
            return ScriptValue(_value(state.output))
    except monty.MontyTypingError as error:
        raise InvalidScript(_without_color(error.display())) from None
    except monty.MontyError as error:
        raise _as_error(error) from None
    finally:
        lines.end()


def _load() -> ModuleType:
    """Load the interpreter's client: only who runs a script needs it."""
    import pydantic_monty  # noqa: PLC0415 - see above

    return pydantic_monty


def _value(output: Any) -> Any:
    cannot = "the script's value cannot be its result"
    try:
        value = output_of(output)
        json.dumps(value)
    except TypeError as error:
        raise ScriptError(f"{cannot}: {error}") from None
    except (ValueError, RecursionError):
        raise ScriptError(f"{cannot}: it is nested too deep, or has too large a number") from None
    return value


class _Lines:
    """Collects what a script prints, line by line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._open = ""

    def add(self, stream: str, text: str) -> None:
        del stream
        *whole, self._open = (self._open + text).split("\n")
        self._lines.extend(line[:MAX_PRINTED] for line in whole)

    def end(self) -> None:
        if self._open:
            self._lines.append(self._open[:MAX_PRINTED])
            self._open = ""


GoOn = Callable[[], Any]
"""Lets the interpreter go on; it is called in its thread."""


def _looked_up(state: Any) -> GoOn:
    """Go on from a name that the script has not defined."""
    name = state.variable_name
    if state.object_id is not None or name not in FUNCTIONS:
        return partial(state.resume)
    return partial(state.resume, value=_function(name))


def _function(name: str) -> Any:
    """Return a function that the script can hold: its calls stop the interpreter."""

    def called(*args: Any, **kwargs: Any) -> None:
        """Stand for the function; its calls are answered elsewhere."""

    called.__name__ = called.__qualname__ = name
    return called


class _Run:
    """The calls of one run.

    Args:
        answers: Answers them.
    """

    def __init__(self, answers: CallAnswers) -> None:
        self._answers = answers
        self._names = CallNames()
        self._pending: dict[str, ScriptCall] = {}
        self._numbers: dict[str, int] = {}
        """Key of a pending call -> its number in the interpreter."""

    async def step(self, state: Any) -> GoOn | None:
        """Go on from what the interpreter has stopped for; None if the script has to wait."""
        monty = _load()
        if isinstance(state, monty.NameLookupSnapshot):
            return _looked_up(state)
        if isinstance(state, monty.FunctionSnapshot):
            return await self._called(state)
        return await self._settled(state)

    async def _called(self, state: Any) -> GoOn | None:
        """Go on from a call; None if it has no answer yet."""
        if state.is_os_function:
            return partial(state.resume_not_handled)
        name = state.function_name
        if name not in FUNCTIONS or state.object_id is not None:
            error = {"exc_type": "NameError", "message": f"name {name!r} is not defined"}
            return partial(state.resume, error)
        try:
            call = self._names.named(name, state.args, state.kwargs)
            if name in AT_ONCE:
                value = await self._answers.at_once(call)
                if isinstance(value, Waits):
                    return None
                return partial(state.resume, {"return_value": as_interpreted(value)})
            await self._answers.made(call)
        except BadCall as error:
            return partial(state.resume, {"exc_type": "TypeError", "message": str(error)})
        self._pending[call.key] = call
        self._numbers[call.key] = state.call_id
        return partial(state.resume, {"future": ...})

    async def _settled(self, state: Any) -> GoOn | None:
        """Go on with the next result; None if there is none yet."""
        if len(state.pending_call_ids) < len(self._pending):  # nothing refers to the others now
            living = set(state.pending_call_ids)
            for key in [one for one, number in self._numbers.items() if number not in living]:
                del self._pending[key], self._numbers[key]
        settled = await self._answers.next(self._pending)
        if settled is None:
            return None
        del self._pending[settled.call.key]
        return partial(state.resume, {self._numbers.pop(settled.call.key): _settling(settled)})


def _settling(settled: SettledCall) -> Any:
    if settled.error:
        return {"exc_type": settled.exception, "message": settled.error}
    return {"return_value": as_interpreted(settled.value)}


def _as_error(error: MontyError) -> Exception:
    """Return what a fault of a script is to its author, with its line."""
    monty = _load()
    text = str(error).replace(AGENT_FAILED, "AgentFailed")
    if isinstance(error, monty.MontyCrashedError):
        return ScriptError("The script's interpreter ended unexpectedly; it may need less memory.")
    frames: list[Any] = getattr(error, "traceback", list)()
    line = frames[-1].line if frames else None
    where = f"line {line}: " if line else ""
    if "turn time limit exceeded" in text:
        text = "it computed for longer than it may between two calls"
    elif "memory limit" in text.lower():
        text = "it needs more memory than a script may have"
    if isinstance(error, monty.MontySyntaxError) or "monty syntax parser" in text:
        text = text.removeprefix("NotImplementedError: ").replace(
            "The monty syntax parser does not yet support", "scripts do not support"
        )
        return InvalidScript(f"{where}{text}")
    return ScriptError(f"{where}{text}")


def _without_color(text: str) -> str:
    """Return the faults that a check of types found, a line each."""
    lines = (line.strip().removeprefix("script.py:") for line in text.splitlines())
    return "\n".join(f"line {line}" if line[:1].isdigit() else line for line in lines if line)
