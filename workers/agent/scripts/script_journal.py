"""What a script has done so far, in its job's journal: written step by step, and replayed in order.

The script makes the same calls when it is run again and gets the same results in the same order. So
its past is one list of steps, and each step that it takes again has to be the next of that list.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from fanout.orchestrator.jobs.bounds import json_bytes
from fanout.orchestrator.jobs.failures import ScriptDiverged
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.scripts.calls import AGENT, BEST_OF, ScriptCall
from fanout.orchestrator.scripts.program import AGENT_FAILED
from fanout.orchestrator.scripts.progress import ScriptReader
from fanout.orchestrator.scripts.run import SettledCall
from fanout.orchestrator.scripts.values import restored, stored
from fanout.orchestrator.workspace.blobs import BlobStore

from ...heartbeat import elapsed_clock
from ..session_journal import AttemptJournal

MAX_VALUE_BYTES = 8 * 1024
"""The largest result inside an entry: a summary and a list of files; larger ones are blobs."""
CALLS_AT_ONCE = 100
"""Calls in one entry, which people read: the entry has a few kilobytes."""
LOGGED_LINES = 1_000
"""The lines that are kept of what a script prints: more is data, which belongs in its value."""
LINES_AT_ONCE = 50
SUMMARY_SECONDS = 1.0
"""While results are settled one after another, what is stored for those who watch is this old at
the most."""

Step = tuple[str, Mapping[str, Any]]
"""A kind (`call`, `result` or `phase`), and its data."""


class ScriptJournal:
    """The steps of one script, during one attempt.

    Args:
        journal: The attempt's journal.
        blobs: Where large results are stored.
        store_summary: Stores how the script stands, as JSON.
    """

    def __init__(
        self,
        journal: AttemptJournal,
        blobs: BlobStore,
        store_summary: Callable[[str], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._blobs = blobs
        self._store_summary = store_summary
        self._progress = ScriptReader()
        self._is_summarised = False
        self._summarised_at = 0.0
        self._steps: list[Step] = []
        self._next = 0
        self._made: dict[str, dict[str, JsonValue]] = {}
        """Calls that are not in the journal yet, by key."""
        self._lines = 0
        self._lines_before = 0
        self.interpreter: str | None = None
        """The version of the interpreter that began the script; None: it has not begun."""
        self.has_ended = False

    def load(self, entries: Sequence[JournalEvent]) -> None:
        """Read what earlier attempts have done."""
        for entry in entries:
            self._progress.add(entry)
            match entry.type:
                case EventType.SCRIPT_STARTED:
                    self.interpreter = str(entry.data["interpreter"])
                case EventType.SCRIPT_CALL:
                    self._steps += [("call", one) for one in _listed(entry.data["calls"])]
                case EventType.SCRIPT_RESULT:
                    self._steps.append(("result", entry.data))
                case EventType.SCRIPT_PHASE:
                    self._steps.append(("phase", entry.data))
                case EventType.SCRIPT_LOG:
                    lines = entry.data["lines"]
                    self._lines_before += len(lines) if isinstance(lines, list) else 0
                case EventType.SCRIPT_ENDED:
                    self.has_ended = True

    async def _note(self, kind: EventType, data: dict[str, JsonValue], line: str) -> None:
        await self._journal.note(kind, data, line)
        self._progress.take(kind, data)
        self._is_summarised = False
        if elapsed_clock() - self._summarised_at > SUMMARY_SECONDS:
            await self.summarise()

    async def summarise(self) -> None:
        """Store how the script stands, for those who watch: before something that may take long."""
        if not self._is_summarised:
            await self._store_summary(self._progress.progress().model_dump_json())
            self._is_summarised, self._summarised_at = True, elapsed_clock()

    @property
    def is_replayed(self) -> bool:
        """Whether all that earlier attempts have done was done again."""
        return self._next == len(self._steps)

    def _replayed(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return the data of this step if an earlier attempt took it; None if it is new.

        Raises:
            ScriptDiverged: The earlier attempt took another step here.
        """
        if self.is_replayed:
            return None
        known, data = self._steps[self._next]
        if known != kind or (key and data.get("key") != key):
            raise ScriptDiverged(
                "The script, run again from its beginning, did not make the same calls as before: "
                "nothing was started. Start it anew."
            )
        self._next += 1
        return data

    async def start(self, version: str) -> None:
        """Record that the script begins, once."""
        if self.interpreter is None:
            self.interpreter = version
            await self._note(EventType.SCRIPT_STARTED, {"interpreter": version}, "script begins")

    def call(self, call: ScriptCall, jobs: Sequence[str], phase: str) -> Mapping[str, Any] | None:
        """Record a call, at the next `flush`.

        Returns:
            What an earlier attempt has recorded of it; None if it is new.

        Raises:
            ScriptDiverged: An earlier attempt made another call here.
        """
        known = self._replayed("call", call.key)
        if known is not None:
            return known
        made: dict[str, JsonValue] = {
            "key": call.key,
            "function": call.function,
            "label": call.label,
        }
        if jobs:
            made |= {"jobs": [*jobs], "agent": str(call.arguments["agent"])}
        if phase:
            made["phase"] = phase
        self._made[call.key] = made
        return None

    def note(self, key: str, **notes: JsonValue) -> None:
        """Add to what the next `flush` records of a new call."""
        self._made[key] |= notes

    async def flush(self) -> None:
        """Write the calls that were made: before any of them has an effect."""
        made, self._made = [*self._made.values()], {}
        for first in range(0, len(made), CALLS_AT_ONCE):
            now: list[JsonValue] = [*made[first : first + CALLS_AT_ONCE]]
            last = f"script calls {made[first + len(now) - 1]['label']}"
            await self._note(EventType.SCRIPT_CALL, {"calls": now}, last[:80])

    async def next_result(
        self, pending: Mapping[str, ScriptCall]
    ) -> tuple[SettledCall, Mapping[str, Any]] | None:
        """Return the next result that an earlier attempt had, with its entry; None: none is left.

        Raises:
            ScriptDiverged: The script does not wait for it.
            BlobMissing: It is large, and has expired.
        """
        if self.is_replayed:
            return None
        data = self._replayed("result", "")
        call = pending.get(str(data["key"])) if data else None
        if data is None or call is None:
            raise ScriptDiverged(
                "The script, run again from its beginning, does not wait for the results that it "
                "waited for before: nothing was started. Start it anew."
            )
        return await read_result(data, call, self._blobs), data

    async def result(self, settled: SettledCall, **notes: JsonValue) -> None:
        """Write the result of a call: before the script sees it."""
        form = stored(settled.value)
        data: dict[str, JsonValue] = {
            "key": settled.call.key,
            "function": settled.call.function,
            "label": settled.call.label,
            "ok": not settled.error and getattr(settled.value, "ok", True) is not False,
            **notes,
        }
        if settled.error:
            data |= {"error": settled.error, "exception": settled.exception}
        if json_bytes(form) > MAX_VALUE_BYTES:
            data["blob"] = await self._blobs.put(json.dumps(form).encode())
        else:
            data["value"] = form
        await self._note(EventType.SCRIPT_RESULT, data, f"script has {settled.call.label}"[:80])

    def phase(self) -> StartFiles | None:
        """Return the files with which an earlier attempt began the next phase; None: it is new.

        Raises:
            ScriptDiverged: The earlier attempt did something else here.
        """
        data = self._replayed("phase", "")
        if data is None:
            return None
        return StartFiles(data.get("snapshot"), tuple(data.get("layers") or ()))

    async def begin_phase(self, name: str, start: StartFiles) -> None:
        """Write that a phase begins, with the files from which its calls start."""
        data: dict[str, JsonValue] = {
            "name": name,
            "snapshot": start.snapshot,
            "layers": [*start.layers],
        }
        await self._note(EventType.SCRIPT_PHASE, data, f"phase {name}"[:80])

    async def log(self, lines: list[str]) -> None:
        """Write printed lines, which are removed from the list; those of earlier attempts not."""
        new = []
        while lines:
            self._lines += 1
            line = lines.pop(0)
            if self._lines_before < self._lines <= LOGGED_LINES:
                new.append(line)
        for first in range(0, len(new), LINES_AT_ONCE):
            some: list[JsonValue] = [*new[first : first + LINES_AT_ONCE]]
            await self._note(EventType.SCRIPT_LOG, {"lines": some}, str(some[-1])[:80])

    async def end(self, counts: dict[str, JsonValue]) -> None:
        """Write that the script has ended, once."""
        if not self.has_ended:
            self.has_ended = True
            await self._note(EventType.SCRIPT_ENDED, counts, "script has ended")


async def read_result(data: Mapping[str, Any], call: ScriptCall, blobs: BlobStore) -> SettledCall:
    """Return a result as the journal has it.

    Raises:
        BlobMissing: It is large, and has expired.
    """
    form = data.get("value")
    if data.get("blob"):
        form = json.loads(await blobs.get(str(data["blob"])))
    value = restored(form) if isinstance(form, Mapping) else None
    error = str(data.get("error") or "")
    return SettledCall(call, value, error, str(data.get("exception") or AGENT_FAILED))


def results_of_jobs(entries: Sequence[JournalEvent]) -> dict[str, Mapping[str, Any]]:
    """Return the results of the jobs that another script has called, by the calls' keys."""
    kinds = (AGENT, "start", BEST_OF)
    found = (entry.data for entry in entries if entry.type is EventType.SCRIPT_RESULT)
    return {
        str(one["key"]): one
        for one in found
        if one.get("function") in kinds and one.get("ok") and one.get("job")
    }


def _listed(calls: JsonValue) -> list[Mapping[str, Any]]:
    return [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
