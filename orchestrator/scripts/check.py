"""Checks a script before anything of it runs, and runs it dry with replies from a file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import JsonValue

from .calls import ScriptCall
from .program import InvalidScript, checked_source
from .run import CallAnswers, ScriptError, SettledCall, run_script
from .values import Handle, LandReport, Ran, Result, Spent

MAX_DRY_CALLS = 10_000
"""The calls of a dry run: a script that makes more has no end."""


async def check_script(
    source: str,
    agents: Mapping[str, str],
    *,
    inputs: Mapping[str, JsonValue] | None = None,
    replies: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Return what is wrong with a script, a line for each fault; empty: nothing was found.

    Args:
        source: The script.
        agents: The agents that it may call, with their descriptions.
        inputs: The value of `inputs`.
        replies: Runs it dry, where the first of these that fits a call answers it: `call` (the
            function; `agent` if it is missing), `match` (a pattern such as `review *` for its task,
            path or question; everything if it is missing), and `reply`: of `agent` and `best_of` a
            summary or a dict with fields of a result, of the others what they return. None: it is
            checked up to its first call.
    """
    answers = _Dry(replies)
    try:
        await run_script(checked_source(source), inputs or {}, answers, seed="check", agents=agents)
    except InvalidScript as error:
        return str(error).splitlines()
    except ScriptError as error:
        return [] if replies is None and answers.has_stopped else [str(error)]
    return answers.problems


class _Dry(CallAnswers):
    """Answers calls from a list of replies; without one it ends the run at the first call."""

    def __init__(self, replies: Sequence[Mapping[str, Any]] | None) -> None:
        self._replies = replies
        self._count = 0
        self._started: dict[str, ScriptCall] = {}
        self.problems: list[str] = []
        self.has_stopped = False

    async def made(self, call: ScriptCall) -> None:
        """See `CallAnswers.made`."""
        del call
        self._count += 1

    async def at_once(self, call: ScriptCall) -> Any:
        """See `CallAnswers.at_once`."""
        if call.function != "start":
            return None
        self._count += 1
        self._started[call.key] = call
        return Handle(call.key, call.label)

    async def next(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        """See `CallAnswers.next`."""
        call = next(iter(pending.values()))
        if self._replies is None:
            self.has_stopped = True
            return None
        if self._count > MAX_DRY_CALLS:
            self.problems.append(f"It makes more than {MAX_DRY_CALLS:,} calls.")
            return None
        await asyncio.sleep(0)
        if call.function == "first":
            handle = call.arguments["handles"][0]
            return self._settled(call, self._started[handle.id])
        return self._settled(call, call)

    def _settled(self, call: ScriptCall, asked: ScriptCall) -> SettledCall | None:
        subject = str(next(iter(asked.arguments.values()), ""))
        if asked.function == "best_of":
            subject = str(asked.arguments["task"])
        for rule in self._replies or ():
            is_kind = rule.get("call", "agent") in (asked.function, asked.kind)
            if is_kind and fnmatchcase(subject, str(rule.get("match", "*"))):
                return _answered(call, asked, rule.get("reply"))
        if asked.function == "budget":
            return SettledCall(call, Spent({}, {}))
        if asked.function == "land":
            return SettledCall(call, LandReport(ok=True))
        self.problems.append(
            f"No reply fits {asked.function}({subject[:100]!r}): add one with "
            f"call: {asked.kind}, match and reply."
        )
        return None


def _answered(call: ScriptCall, asked: ScriptCall, reply: Any) -> SettledCall:
    if asked.kind in ("agent", "best_of"):
        fields = reply if isinstance(reply, Mapping) else {"summary": str(reply or "")}
        known = {name: value for name, value in fields.items() if name in Result.__annotations__}
        is_ok = bool(known.get("ok", True))
        defaults: dict[str, Any] = {
            "id": asked.key,
            "ok": is_ok,
            "state": "succeeded" if is_ok else "failed",
            "label": asked.label,
        }
        result = Result(**{**defaults, **known})
        failed = asked.is_checked and not result.ok
        return SettledCall(call, result, (result.error or "it failed") if failed else "")
    if asked.function == "run":
        fields = reply if isinstance(reply, Mapping) else {"output": str(reply or "")}
        code = int(fields.get("exit_code", 0))
        return SettledCall(call, Ran(code == 0, code, str(fields.get("output", ""))))
    if asked.function == "land":
        fields = reply if isinstance(reply, Mapping) else {}
        return SettledCall(call, LandReport(**{"ok": True, **fields}))
    return SettledCall(call, reply)
