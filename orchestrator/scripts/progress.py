"""How a script stands, for those who watch: its phases with counts, what it waits for, its log.

It is read from its job's journal, event by event. The script's worker does so too, and stores what
it has read: a journal of ten thousand calls has megabytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..jobs.store.journal import EventType, JournalEvent

COUNTED = frozenset({"agent", "start", "best_of"})
"""The functions whose calls are counted: those that agents answer."""
MOST_PHASES = 100
"""The most phases that are shown, the newest ones: a loop may begin one in each round."""
MOST_WAITING = 10
"""The most calls that are named as waited for."""
MOST_LINES = 50
"""The most log lines that are shown, the newest ones."""
NAME_CHARACTERS = 200
"""What is shown of a phase's name."""
BEFORE_PHASES = ""
"""The name of what is done before a script begins its first phase."""


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PhaseProgress(_Shown):
    """The calls of one phase."""

    name: str
    """Empty: before the first phase."""
    asked: int = 0
    """Calls of agents that the script has made."""
    answered: int = 0
    """Those that have a result, and did not fail."""
    reused: int = 0
    """Of those that were answered: by a job of an earlier script."""
    failed: int = 0
    waiting: int = 0
    """Those that have no result yet."""


class ScriptEnd(_Shown):
    """The counts of a script that has ended."""

    asked: int = 0
    answered: int = 0
    failed: int = 0
    cancelled: int = 0
    """Calls that nobody waited for at the end."""
    never_run: int = 0
    kept: int = 0
    """Of those that were answered: by the run that this one continues."""
    reused: int = 0
    """Of those that were answered: by a job of an earlier script."""
    reasons: tuple[str, ...] = ()
    """Why calls were not run."""


class ScriptProgress(_Shown):
    """How a script stands."""

    phases: tuple[PhaseProgress, ...] = ()
    """Oldest first."""
    waits_for: tuple[str, ...] = ()
    """The labels of calls that it waits for, the oldest ones."""
    waits_for_count: int = 0
    """How many calls it waits for."""
    log: tuple[str, ...] = ()
    """The newest lines that it has logged."""
    end: ScriptEnd | None = None
    """None until it has ended."""


@dataclass
class _Phase:
    name: str
    asked: int = 0
    answered: int = 0
    reused: int = 0
    failed: int = 0


@dataclass(frozen=True)
class _Pending:
    label: str
    phase: _Phase | None
    """None for a call that is not counted."""


@dataclass
class ScriptReader:
    """Reads a script's progress from the events of its job's journal."""

    _phases: deque[_Phase] = field(default_factory=lambda: deque(maxlen=MOST_PHASES))
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _log: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    _end: ScriptEnd | None = None

    def add(self, event: JournalEvent) -> bool:
        """Take the next event; return whether it has changed what is shown."""
        return self.take(event.type, event.data)

    def take(self, kind: EventType | str, data: Mapping[str, Any]) -> bool:
        """Take the type and the data of the next event; as `add`."""
        if kind is EventType.SCRIPT_CALL:
            for call in _objects(data.get("calls")):
                self._called(call)
        elif kind is EventType.SCRIPT_RESULT:
            self._settled(data)
        elif kind is EventType.SCRIPT_PHASE:
            self._phases.append(_Phase(str(data.get("name", ""))[:NAME_CHARACTERS]))
        elif kind is EventType.SCRIPT_LOG:
            self._log.extend(log_lines(data))
        elif kind is EventType.SCRIPT_ENDED:
            self._end = _end(data)
            self._pending.clear()
        else:
            return False
        return True

    def _called(self, call: Mapping[str, Any]) -> None:
        key = str(call.get("key"))
        if key in self._known:  # an attempt that was lost has written it before
            return
        self._known.add(key)
        is_counted = call.get("function") in COUNTED
        phase = self._phase() if is_counted else None
        if phase is not None:
            phase.asked += 1
        self._pending[key] = _Pending(str(call.get("label", "")), phase)

    def _phase(self) -> _Phase:
        if not self._phases:
            self._phases.append(_Phase(BEFORE_PHASES))
        return self._phases[-1]

    def _settled(self, data: Mapping[str, Any]) -> None:
        pending = self._pending.pop(str(data.get("key")), None)
        if pending is None or pending.phase is None:
            return
        if data.get("ok"):
            pending.phase.answered += 1
            pending.phase.reused += bool(data.get("reused"))
        else:
            pending.phase.failed += 1

    def progress(self) -> ScriptProgress:
        """Return how the script stands."""
        labels = [pending.label for pending in self._pending.values()]
        return ScriptProgress(
            phases=tuple(self._shown(phase) for phase in self._phases),
            waits_for=tuple(labels[:MOST_WAITING]),
            waits_for_count=len(labels),
            log=tuple(self._log),
            end=self._end,
        )

    def _shown(self, phase: _Phase) -> PhaseProgress:
        waiting = 0 if self._end else phase.asked - phase.answered - phase.failed
        return PhaseProgress(
            name=phase.name,
            asked=phase.asked,
            answered=phase.answered,
            reused=phase.reused,
            failed=phase.failed,
            waiting=waiting,
        )


def log_lines(data: Mapping[str, Any]) -> list[str]:
    """Return the lines of a `script.log` event."""
    lines = data.get("lines")
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _objects(listed: Any) -> list[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _end(data: Mapping[str, Any]) -> ScriptEnd:
    counts = {
        name: int(value)
        for name in ("asked", "answered", "failed", "cancelled", "never_run", "kept", "reused")
        if isinstance(value := data.get(name), int)
    }
    reasons = data.get("reasons")
    texts = [str(one) for one in reasons] if isinstance(reasons, list) else []
    return ScriptEnd(**counts, reasons=tuple(texts))
