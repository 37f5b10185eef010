"""The agent's plan: `write_todos` and `read_todos`.

An invalid list is rejected with an error that says how to correct it. The rules about working with
the list are advice: the list is stored, and the result contains the advice.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import Field, WithJsonSchema

from ..failures import ToolMistake
from ..middleware import Middleware
from ..prompts import PLAN
from ..tool import MethodTool, tabular

STATE_KEY = "todos"
STATUSES = ("pending", "in_progress", "completed")

OTHER_STATUSES = {
    **dict.fromkeys(("todo", "to_do", "open", "new", "not_started", "planned"), "pending"),
    **dict.fromkeys(("doing", "active", "started", "in_work", "inprogress"), "in_progress"),
    **dict.fromkeys(("wip", "ongoing", "working", "running", "current"), "in_progress"),
    **dict.fromkeys(("done", "complete", "finished", "closed", "x"), "completed"),
}
"""Statuses of the plans of other harnesses, which models write here too."""

CANCELLED = {"cancelled", "canceled", "deleted", "skipped"}
"""Statuses of Gemini CLI, OpenCode and Claude Code. Here a step that is no longer needed leaves the
list."""

CONTENT_KEYS = ("content", "step", "subject", "title", "task", "text", "description")
"""The keys of a step's words: here, in Codex, in Claude Code's tasks, in others, in Gemini CLI."""

MAX_TODOS = 100
"""A longer plan is useless, and the model writes the whole list with every change."""

MAX_CONTENT_CHARACTERS = 1_000
"""The length of one step; details belong in files."""

NONE_IN_PROGRESS = "Mark the step that you work on as in_progress."
LATER_STEP_FIRST = (
    "The plan begins with a later step: mark the first one in_progress, or put the steps in the "
    "order in which you do them."
)
SAME_WORDS = "Some steps have the same words; make them different or drop one."
REOPENED = "A completed step was opened again; add a new step instead."
COMPLETED_GONE = (
    "Completed steps are gone from the list; keep them as they were: they show what is done."
)
PUT_BACK = (
    "A step that you had begun is pending again; keep it in_progress, and if it is blocked add a "
    "step for what blocks it."
)
NEVER_BEGUN = (
    "A step was completed that had never been in_progress; mark each step before you begin it."
)

_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "content": {"type": "string", "description": "What to do"},
            "status": {"type": "string", "enum": list(STATUSES)},
        },
        "required": ["content", "status"],
        "additionalProperties": False,
    },
}


class TodoTools(Middleware):
    """The plan of one agent, in its session's state."""

    def tools(self) -> list[BaseTool]:
        """Return `write_todos` and `read_todos`."""
        return [MethodTool(self.write_todos), MethodTool(self.read_todos)]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain when to keep a plan."""
        del context
        return PLAN if "write_todos" in tools else ""

    async def write_todos(
        self,
        todos: Annotated[
            Any, WithJsonSchema(_SCHEMA), Field(description="The whole list, in order")
        ],
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Replace your plan with this list.

        Use it for work of three steps or more, for several tasks at once, when you are asked for a
        plan, or when what you find decides what comes next. Not for one simple task, a question or
        a talk: there it only costs time.

        Break the work into specific steps, each small enough to see when it is done, and say in
        each what to do. Mark the first step in_progress at once; until all are completed, at least
        one is. Mark a step in_progress before you begin it and completed right after it is done,
        not several together later. Finish what is in_progress before you begin more; steps that do
        not depend on each other may be in_progress together. Add what you discover, drop what is no
        longer needed, and leave completed steps as they are.

        Completed means done in full: no error is open, no part is missing, no check fails, nothing
        that was needed is still to be found. A step that is blocked stays in_progress: add a step
        that says what has to be resolved.

        Call it at most once in a reply.
        """
        if _calls_in_this_reply(tool_context) > 1:
            raise ToolMistake(
                "write_todos was called more than once in one reply; none of the lists was taken, "
                "because each would replace the other. Call it once with the whole list."
            )
        before = tool_context.state.get(STATE_KEY) or []
        checked = _checked(todos)
        tool_context.state[STATE_KEY] = checked
        advice = _advice(before, checked)
        note = {"advice": advice} if advice else {}
        return {"status": "success", "count": len(checked), **note}

    @tabular
    async def read_todos(self, *, tool_context: ToolContext) -> dict[str, Any]:
        """Read your plan."""
        return {"todos": tool_context.state.get(STATE_KEY) or []}


def _checked(todos: Any) -> list[dict[str, str]]:
    """Return the steps; keys that belong to other harnesses, such as `activeForm`, are ignored.

    Raises:
        ToolMistake: It is no list of steps.
    """
    if not isinstance(todos, list):
        raise ToolMistake('todos must be a list of {"content": …, "status": …}.')
    if len(todos) > MAX_TODOS:
        raise ToolMistake(f"A plan may have {MAX_TODOS} steps, not {len(todos)}. Join some.")
    faults = [
        fault for number, todo in enumerate(todos, start=1) if (fault := _fault(todo, number))
    ]
    if faults:
        raise ToolMistake("The list was not taken. " + " ".join(faults))
    steps = [{"content": _content(todo), "status": _status(todo)} for todo in todos]
    return [step for step in steps if step["status"] not in CANCELLED]


def _fault(todo: Any, number: int) -> str | None:
    if not isinstance(todo, dict):
        return f"Item {number} must be an object with content and status."
    content = _content(todo)
    if not content.strip():
        return f"Item {number} needs a non-empty content."
    if len(content) > MAX_CONTENT_CHARACTERS:
        return f"Item {number} is longer than {MAX_CONTENT_CHARACTERS} characters."
    if _status(todo) not in {*STATUSES, *CANCELLED}:
        return f"Item {number} needs a status out of {', '.join(STATUSES)}."
    return None


def _content(todo: dict[str, Any]) -> str:
    return next((text for key in CONTENT_KEYS if isinstance(text := todo.get(key), str)), "")


def _status(todo: dict[str, Any]) -> str:
    """Return a step's status, in our words if it is known; marks beside its letters are ignored."""
    status = "_".join(re.findall(r"[a-z]+", str(todo.get("status")).lower()))
    return OTHER_STATUSES.get(status, status)


def _advice(before: list[dict[str, str]], todos: list[dict[str, str]]) -> list[str]:
    """Return what to do better; `before` is empty or completed where a plan is new."""
    statuses = {todo["status"] for todo in todos}
    now = {todo["content"].strip(): todo["status"] for todo in todos}
    past = {todo["content"].strip(): todo["status"] for todo in before}
    is_new = not past or set(past.values()) == {"completed"}
    faults = {
        NONE_IN_PROGRESS: "in_progress" not in statuses and "pending" in statuses,
        LATER_STEP_FIRST: is_new and _begins_later(todos),
        SAME_WORDS: len(now) < len(todos),
        REOPENED: any(
            past[step] == "completed" != status for step, status in now.items() if step in past
        ),
        COMPLETED_GONE: not is_new
        and any(status == "completed" for step, status in past.items() if step not in now),
        PUT_BACK: any(
            (past.get(step), status) == ("in_progress", "pending") for step, status in now.items()
        ),
        NEVER_BEGUN: any(
            (past.get(step), status) == ("pending", "completed") for step, status in now.items()
        ),
    }
    return [advice for advice, applies in faults.items() if applies]


def _begins_later(todos: list[dict[str, str]]) -> bool:
    """Return whether a step is in progress before which another one is pending."""
    statuses = [todo["status"] for todo in todos if todo["status"] != "completed"]
    return "in_progress" in statuses and statuses[0] == "pending"


def _calls_in_this_reply(tool_context: ToolContext) -> int:
    """Return the number of write_todos calls in the reply that this call is part of."""
    for event in reversed(tool_context.session.events):
        calls = event.get_function_calls()
        if any(call.id == tool_context.function_call_id for call in calls):
            return sum(call.name == "write_todos" for call in calls)
    return 1
