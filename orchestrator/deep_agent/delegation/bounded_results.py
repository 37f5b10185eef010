"""What an agent reads of its tasks is bounded, however many there are and however much they say.

The results that one reply gets stay as they are while they fit together. Otherwise each says how
its task stands, and the last one has a table: failures and conflicts first, then a row for each of
the others, then how many do not fit. Each whole result is a file of the agent's, which is kept in
its session's state as `context/eviction.py` keeps other results: it is no part of a workspace and
lives as long as the conversation.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.state import State
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from ...shortening import one_line
from ..backends.state import StateBackend
from ..context.eviction import (
    MAX_NAME_CHARACTERS,
    TASK_RESULTS,
    make_room,
    readable,
)
from ..messages import with_response
from ..middleware import Middleware
from ..models.tokens import CHARACTERS_PER_TOKEN, characters
from ..prompts import (
    TASK_RESULT_DROPPED,
    TASK_RESULTS_CHECKED,
    TASK_RESULTS_KEPT,
    TASK_RESULTS_READERS,
)
from ..tool import is_about_tasks
from ..toon import as_toon
from .task_record import TaskRecord, TaskResult

MAX_RESULT_TOKENS = 8_000
"""What the results of one reply add to the next request at most, by `models/tokens.py`."""

LEAST_RESULT_TOKENS = 2_500
"""The smallest limit: a reply may have 128 calls, each of whose answers has an id and a state."""

LINE_CHARACTERS = 160
"""The first line of a summary in a row."""

ERROR_CHARACTERS = 300
"""The reason of a failure in a row: an exit code and the names of a few tests."""

BEGINNING_CHARACTERS = 8_000
"""What is shown of the summary of a task that is the only one."""

SHORT_CHARACTERS = 200
"""The longest text that an answer keeps beside the table."""

NAMED_PATHS = 3
"""Paths of conflicts in a row; the whole result has the others."""

WRITTEN_AT_ONCE = 100
"""Files that are written before other agents have their turn."""

_ALWAYS = ("status", "task_id")
_LISTS = ("results", "tasks", "unfinished")
_IN_TABLE = (*TaskRecord.model_fields, "success", "execution_time")
_OPEN = "not_shown"
_OVERHEAD = 600
"""Characters of the keys and counts around a table, and of the sentence about it."""

_STATES = ("failed", "timed_out", "cancelled", "waiting", "running", "queued", "succeeded")
"""The order of listed tasks that do not all fit."""


class Answer(NamedTuple):
    """What a tool answered to one call."""

    tool: str
    response: dict[str, Any]


class BoundedResults(Middleware):
    """Keeps each whole result of a task as a file, and bounds what the model reads of them.

    Args:
        max_tokens: What the results of one reply add to the next request at most.
        tools: The names of the agent's tools, of which some can read the files.
    """

    def __init__(self, max_tokens: int, tools: Collection[str]) -> None:
        self._limit = max_tokens
        self._how = how_to_read(tools)

    async def after_tools(
        self, results: Event, tools: Mapping[str, BaseTool], state: Mapping[str, Any]
    ) -> None:
        """Keep and bound what the tools that delegate have answered."""
        answers = [
            answer
            for answer in results.get_function_responses()
            if is_about_tasks(tools.get(answer.name or ""))
        ]
        given = [Answer(answer.name or "", answer.response or {}) for answer in answers]
        records = [record for answer in given for record in task_records(answer.response)]
        if records:
            await _keep(records, State(dict(state), results.actions.state_delta))
        for answer, response in zip(answers, bounded(given, self._limit, self._how), strict=True):
            answer.response = response


def how_to_read(tools: Collection[str]) -> str:
    """Return the sentence about where the whole results are.

    Args:
        tools: The names of the agent's tools.
    """
    readers = [usage for name, usage in TASK_RESULTS_READERS.items() if name in tools]
    return TASK_RESULTS_KEPT.format(tools=" or ".join(readers)) if readers else ""


def bounded_contents(request: LlmRequest, tools: Mapping[str, BaseTool], max_tokens: int) -> None:
    """Bound the results in a request, for an agent without the middleware.

    Args:
        request: The request, which is changed; what the session has is not.
        tools: The tools that delegate, by their names.
        max_tokens: What the results of one reply have at most.
    """
    names = {name for name, tool in tools.items() if is_about_tasks(tool)}
    request.contents = [_bounded_content(one, names, max_tokens) for one in request.contents]


def _bounded_content(
    content: types.Content, names: Collection[str], max_tokens: int
) -> types.Content:
    parts = [*(content.parts or [])]
    found = {
        index: Answer(part.function_response.name or "", part.function_response.response or {})
        for index, part in enumerate(parts)
        if part.function_response and part.function_response.name in names
    }
    said = bounded([*found.values()], max_tokens, TASK_RESULTS_CHECKED)
    for index, response in zip(found, said, strict=True):
        parts[index] = with_response(parts[index], response)
    return content.model_copy(update={"parts": parts}) if found else content


def bounded(answers: Sequence[Answer], max_tokens: int, how: str) -> list[dict[str, Any]]:
    """Return what a model reads of the answers of one reply; the same if they fit.

    Args:
        answers: The answers, in order.
        max_tokens: What they have at most.
        how: Says how the whole results can be read; empty: they cannot.
    """
    limit = max_tokens * CHARACTERS_PER_TOKEN
    given = [one.response for one in answers]
    if _length(answers, given) <= limit:
        return given
    brief = [_brief(one.response, SHORT_CHARACTERS) for one in answers]
    left = limit - _length(answers, brief)
    if left < limit // 4:
        brief = [_brief(one.response, 0) for one in answers]
        left = limit - _length(answers, brief)
    lists = [index for index, one in enumerate(answers) if _listed(one.response)]
    records = [record for one in answers for record in task_records(one.response)]
    unfinished = [name for one in answers for name in one.response.get("unfinished") or ()]
    share = left // max(len(lists) + bool(records) + bool(unfinished), 1)
    for index in lists:
        brief[index] |= _table_of_states(_listed(answers[index].response), share)
    if unfinished:
        brief[-1] |= _open_ids(unfinished, share)
    if records:
        brief[-1] |= _table_of_results(records, share, how)
    return brief


def task_records(response: Mapping[str, Any]) -> list[TaskResult]:
    """Return the records of tasks in the result of a tool; none for one that tells of none."""
    results = response.get("results")
    found = results if isinstance(results, list) else [response]
    return [one for one in found if isinstance(one, dict) and _is_record(one)]


def _listed(response: Mapping[str, Any]) -> list[TaskResult]:
    """Return what `list_tasks` listed."""
    tasks = response.get("tasks")
    return [one for one in tasks if isinstance(one, dict)] if isinstance(tasks, list) else []


def _length(answers: Sequence[Answer], said: Sequence[Mapping[str, Any]]) -> int:
    names = sum(len(answer.tool) for answer in answers)
    return names + sum(map(characters, said))


def _brief(response: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Return what an answer says beside the table: id and state, and what else is short."""
    left_out = _IN_TABLE if _is_record(response) else _LISTS
    return {
        name: value
        for name, value in response.items()
        if name in _ALWAYS or (name not in left_out and characters(value) <= longest)
    }


def _is_record(response: Mapping[str, Any]) -> bool:
    return "success" in response and "task_id" in response


def _table_of_results(records: Sequence[TaskResult], room: int, how: str) -> dict[str, Any]:
    """Return the table of tasks that have ended, in at most that many characters."""
    alone = records[0] if len(records) == 1 else None
    found: dict[str, Any] = {"message": how} if how else {}
    if alone is not None:
        begins = min(BEGINNING_CHARACTERS, room // 2)
        found["summary_begins"] = str(alone.get("summary") or "")[:begins]
        room -= begins
    ordered = sorted(records, key=lambda one: (one.get("success") is True, not _problems(one)))
    text, left = _fitting([_row(one) for one in ordered], room - _OVERHEAD)
    found["results"] = text
    if left:
        found[_OPEN] = dict(Counter(str(one.get("status")) for one in ordered[-left:]))
    return found


def _table_of_states(tasks: Sequence[TaskResult], room: int) -> dict[str, Any]:
    """Return the table of tasks as `list_tasks` lists them; failures and open ones come first."""
    order = {state: number for number, state in enumerate(_STATES)}
    ordered = sorted(tasks, key=lambda one: order.get(str(one.get("state")), 0))
    rows = [{name: _short(value) for name, value in one.items()} for one in ordered]
    text, left = _fitting(rows, room - _OVERHEAD)
    found: dict[str, Any] = {"tasks": text}
    if left:
        found[_OPEN] = dict(Counter(str(one.get("state")) for one in ordered[-left:]))
    return found


def _open_ids(names: Sequence[str], room: int) -> dict[str, Any]:
    """Return the ids of tasks that have not ended, as far as they fit."""
    length = max(map(len, names)) + 1
    shown = [*names[: max((room - _OVERHEAD) // length, 0)]]
    left = len(names) - len(shown)
    return {"unfinished": shown, **({"unfinished_not_shown": left} if left else {})}


def _fitting(rows: Sequence[Mapping[str, Any]], room: int) -> tuple[str, int]:
    """Return the first rows as TOON in at most that many characters, and how many are left out."""
    lines = as_toon(rows).split("\n")
    used, shown = len(lines[0]), 0
    for line in lines[1:]:
        used += 1 + len(line)
        if used > room:
            break
        shown += 1
    shown = min(shown, len(rows))
    return as_toon(rows[:shown]) if shown else "", len(rows) - shown


def _row(record: TaskResult) -> dict[str, Any]:
    files, usage = record.get("files_modified"), record.get("usage")
    changed = len(files) if isinstance(files, list) else 0
    omitted = record.get("files_omitted")
    failure = record.get("error")
    line = str(record.get("summary") or "").lstrip().partition("\n")[0]
    return {
        "task": record.get("task_id", ""),
        "agent": record.get("agent"),
        "status": record.get("status"),
        "line": one_line(str(failure), ERROR_CHARACTERS)
        if failure
        else one_line(line, LINE_CHARACTERS),
        "files": changed + (omitted if isinstance(omitted, int) else 0),
        "merge": _merge(record),
        "cost_usd": usage.get("cost_usd") if isinstance(usage, dict) else None,
    }


def _merge(record: TaskResult) -> str | None:
    merge = record.get("merge")
    if not isinstance(merge, dict):
        return None
    parts = [f"{merge.get('applied') or 0} applied"]
    if problems := _problems(record):
        names = ", ".join(_short(path) for path in problems[:NAMED_PATHS])
        parts.append(f"{len(problems)} not: {names}{', …' * (len(problems) > NAMED_PATHS)}")
    return "; ".join(parts)


def _problems(record: TaskResult) -> list[str]:
    """Return the paths of changes that were not merged."""
    merge = record.get("merge")
    lists: Iterable[Any] = merge.values() if isinstance(merge, dict) else ()
    entries = [one for kind in lists if isinstance(kind, list) for one in kind]
    return [str(one.get("path")) for one in entries if isinstance(one, dict)]


def _short(value: Any) -> Any:
    return one_line(value, LINE_CHARACTERS) if isinstance(value, str) else value


async def _keep(records: Sequence[TaskResult], state: State) -> None:
    """Write each whole result to its file; the oldest ones are deleted if there is no room."""
    files = StateBackend(state)
    texts = {
        path: f"# Task {record['task_id']}\n\n{readable(record)}\n".encode(errors="replace")
        for record in records
        if (path := result_path(str(record.get("task_id") or "")))
    }
    await make_room(files, TASK_RESULTS, sum(map(len, texts.values())), TASK_RESULT_DROPPED)
    for number, (path, text) in enumerate(texts.items(), start=1):
        await files.write_bytes(path, text)
        if number % WRITTEN_AT_ONCE == 0:
            await asyncio.sleep(0)


def result_path(task_id: str) -> str:
    """Return the file of a task's whole result; empty for a task without an id."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", task_id)[:MAX_NAME_CHARACTERS]
    return f"{TASK_RESULTS}/{name}.md" if name.strip(".") else ""
