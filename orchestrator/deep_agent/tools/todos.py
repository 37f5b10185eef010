"""The agent's plan: `write_todos` and `read_todos`.

An invalid list is rejected with an error that says how to correct it. The rules about working with
the list are advice: the list is stored, and the result contains the advice.
"""

from __future__ import annotations

from typing import Annotated, Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import Field, WithJsonSchema

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import PLAN
from fanout.orchestrator.deep_agent.tool import MethodTool, tabular

STATE_KEY = "todos"
STATUSES = ("pending", "in_progress", "completed")

MAX_TODOS = 100
"""A longer plan is useless, and the model writes the whole list with every change."""

MAX_CONTENT_CHARACTERS = 1_000
"""The length of one step; details belong in files."""

_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "content": {"type": "string", "description": "What to do"},
            "status": {"type": "string", "enum": list(STATUSES)},
        },
        "required": ["content", "status"],
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

        Use it for work of three steps or more, or when you are given several tasks; for less it
        only costs time. Mark a step in_progress before you start it and completed as soon as it is
        done. Add what you discover, drop what is no longer needed. Call it at most once in a reply.
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
    if not isinstance(todos, list):
        raise ToolMistake('todos must be a list of {"content": …, "status": …}.')
    if len(todos) > MAX_TODOS:
        raise ToolMistake(f"A plan may have {MAX_TODOS} steps, not {len(todos)}. Join some.")
    faults = [
        fault for number, todo in enumerate(todos, start=1) if (fault := _fault(todo, number))
    ]
    if faults:
        raise ToolMistake("The list was not taken. " + " ".join(faults))
    return [{"content": todo["content"], "status": todo["status"]} for todo in todos]


def _fault(todo: Any, number: int) -> str | None:
    if not isinstance(todo, dict):
        return f"Item {number} must be an object with content and status."
    unknown = sorted(str(key) for key in todo if key not in {"content", "status"})
    if unknown:
        keys = ", ".join(unknown)
        return f"Item {number} has unknown keys: {keys}. Only content and status are allowed."
    content = todo.get("content")
    if not isinstance(content, str) or not content.strip():
        return f"Item {number} needs a non-empty content."
    if len(content) > MAX_CONTENT_CHARACTERS:
        return f"Item {number} is longer than {MAX_CONTENT_CHARACTERS} characters."
    if todo.get("status") not in STATUSES:
        return f"Item {number} needs a status out of {', '.join(STATUSES)}."
    return None


def _advice(before: list[dict[str, str]], todos: list[dict[str, str]]) -> list[str]:
    advice = []
    statuses = [todo["status"] for todo in todos]
    if todos and "in_progress" not in statuses and "pending" in statuses:
        advice.append("Mark the step that you work on as in_progress.")
    contents = [todo["content"].strip() for todo in todos]
    if len(set(contents)) < len(contents):
        advice.append("Some steps have the same words; make them different or drop one.")
    done = {todo["content"] for todo in before if todo["status"] == "completed"}
    if done & {todo["content"] for todo in todos if todo["status"] != "completed"}:
        advice.append("A completed step was opened again; add a new step instead.")
    return advice


def _calls_in_this_reply(tool_context: ToolContext) -> int:
    """Return the number of write_todos calls in the reply that this call is part of."""
    for event in reversed(tool_context.session.events):
        calls = event.get_function_calls()
        if any(call.id == tool_context.function_call_id for call in calls):
            return sum(call.name == "write_todos" for call in calls)
    return 1
