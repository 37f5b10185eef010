"""What a coding agent is told: its task, and what has happened when it is asked to go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.adk.events import Event

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import task_message, text_of
from fanout.orchestrator.jobs.spec import JobSpec

from .conversation import Ask

MAX_TOLD_CHARACTERS = 40_000
"""What a new process is told of earlier work: ten thousand tokens; the files say the rest."""
TOLD_RESULT_CHARACTERS = 300
"""How much of a tool's result it is told."""

# What is sent to agents. "Do not do it twice": a session that is loaded may not have the last step.
VERIFIED = (
    "When you have answered, your work is verified with this command, which has to exit with 0:\n\n"
    "{command}"
)
FITS_SCHEMA = (
    "Your last message has to be JSON only, without any other text, that fits this JSON Schema:\n\n"
    "{schema}"
)
NOT_FITTING = (
    "Your last message does not fit the JSON Schema that it has to fit ({why}). Answer again with "
    "JSON only, without any other text, that fits this JSON Schema:\n\n{schema}"
)
INTERRUPTED = (
    "Your process was ended while you were at work, and was started again. The files are as you "
    "left them; commands that were running have ended. Look at what is done, do not do it twice, "
    "and go on to the end. You were asked last:\n\n{text}"
)
DECIDED = (
    "You have asked for permission, your process was ended, and a person has decided "
    "meanwhile:\n\n{decisions}\n\nRepeat now what you asked for, exactly as it was, wherever it was "
    "approved; leave out what was rejected. Then go on to the end of your task, which was:\n\n"
    "{text}"
)
TOLD = (
    "This goes on from earlier work that you do not remember. The files in your folder are as it "
    "left them; commands that were running have ended. This is what was said and done, the newest "
    "last:\n\n<earlier>\n{earlier}\n</earlier>\n\n{text}"
)


def first_prompt(
    spec: JobSpec, definition: AgentDefinition, verify: str | None, schema: Any
) -> str:
    """Return the first prompt of a job.

    Args:
        spec: The job.
        definition: The definition of its agent.
        verify: The command that verifies the answer; None for none.
        schema: The JSON Schema of the answer; None for none.
    """
    task = task_message(spec.description, spec.context or "")
    parts = [definition.instruction.strip(), "".join(part.text or "" for part in task.parts or ())]
    if verify:
        parts.append(VERIFIED.format(command=verify))
    if schema is not None:
        parts.append(FITS_SCHEMA.format(schema=json.dumps(schema)))
    return "\n\n".join(part for part in parts if part)


def decided_prompt(text: str, decided: Sequence[tuple[Ask, ApprovalAnswer]]) -> str:
    """Return the prompt after a person has decided about what an agent asked for.

    Args:
        text: The prompt in whose turn it asked.
        decided: What it asked for, with the answers.
    """
    lines = []
    for ask, answer in decided:
        verb = "approved" if answer.decision == "approve" else "rejected"
        remark = f" ({answer.message})" if answer.message else ""
        lines.append(f"- {verb}: {ask.kind} {json.dumps(ask.arguments)}{remark}")
    return DECIDED.format(decisions="\n".join(lines), text=text)


def told(events: Sequence[Event], text: str) -> str:
    """Return a prompt for a session that knows nothing of a conversation.

    Args:
        events: The conversation.
        text: The prompt.
    """
    lines = [line for event in events for line in _lines(event)]
    earlier = "\n".join(lines)
    if len(earlier) > MAX_TOLD_CHARACTERS:
        earlier = f"… (the beginning is left out)\n{earlier[-MAX_TOLD_CHARACTERS:]}"
    return TOLD.format(earlier=earlier, text=text) if lines else text


def _lines(event: Event) -> list[str]:
    who = "asked" if event.author == "user" else "said"
    text = text_of(event).strip()
    lines = [f"{who}: {text}"] if text else []
    calls = [("called", call.name, call.args) for call in event.get_function_calls()]
    results = [("result", one.name, one.response) for one in event.get_function_responses()]
    for what, name, value in (*calls, *results):
        lines.append(f"{what}: {name} {json.dumps(value or {})[:TOLD_RESULT_CHARACTERS]}")
    return lines
