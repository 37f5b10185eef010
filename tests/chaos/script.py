"""What the agents of the jobs do.

A scripted model, whose commands leave numbered lines with their time.

A step writes `3 begin <place> <time>` and, when it is through, `3 end …` to its file. The place
tells one container from another (the start of its first process), the time is the machine's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.scripts import call, calls, conversation, says, shell, write_script

AGENTS = {
    "guarded": "description: Asks first.\ninstruction: Do it.\ninterrupt_on: {execute: true}\n",
    "lead": "description: Delegates.\ninstruction: Do it.\nsubagents: [lead, general-purpose]\n",
}
DONE = says("Finished.\n\n## Summary\nDone as asked.")
STEPS = "steps.txt"
_STEP = re.compile(r": step (\d+) (\S+);")
_LINE = re.compile(r"(\d+) (begin|end) (\d+) (\d+\.\d+)")


@dataclass(frozen=True)
class Line:
    """One line that a step wrote."""

    step: int
    word: str
    place: str
    at: float


def step(number: int, file: str = STEPS, seconds: str = "{{1}}") -> dict[str, Any]:
    """A reply that runs one step."""
    note = f'echo "{number} %s $p $(date +%%s.%%N)" >> {file}'
    place = "p=$(cut -d' ' -f22 /proc/1/stat)"
    return shell(
        f": step {number} {file}; {place}; {note % 'begin'}; sleep {seconds}; {note % 'end'}"
    )


def step_of(command: str) -> tuple[int, str] | None:
    """Which step a command is, and of which file; None for another command."""
    found = _STEP.match(command)
    return (int(found[1]), found[2]) if found else None


def lines_of(content: str) -> list[Line]:
    """The lines of a steps file; a line that is none is a step 0."""
    found = [_LINE.fullmatch(line) for line in content.splitlines()]
    return [
        Line(int(match[1]), match[2], match[3], float(match[4]))
        if match
        else Line(0, "torn", "", 0.0)
        for match in found
    ]


def _task(description: str, agent: str = "general-purpose") -> dict[str, Any]:
    return call("task", description=description, subagent_type=agent)


def _file(tool: str, **arguments: str) -> dict[str, Any]:
    return calls(call(tool, file_path="/workspace/made.txt", **arguments))


CONVERSATIONS = (
    conversation(r"chaos tiny (\S+)", step(1), DONE),
    conversation(r"chaos (?:steps|once) (\S+)", *(step(number) for number in range(1, 5)), DONE),
    conversation(
        r"chaos files (\S+)",
        _file("write_file", content="start end\n"),
        step(1),
        _file("edit_file", old_string="end", new_string="more end"),
        _file("read_file"),
        step(2),
        DONE,
    ),
    conversation(r"chaos long (\S+)", *(step(number) for number in range(1, 4)), DONE),
    conversation(
        r"chaos stumbles (\S+)", step(1), shell("exit 3"), _file("read_file"), step(2), DONE
    ),
    conversation(
        r"chaos background (\S+)",
        shell(
            "setsid sleep 300 >/dev/null 2>&1 & (trap '' TERM; sleep 300) >/dev/null 2>&1 & echo left"
        ),
        step(1),
        step(2),
        DONE,
    ),
    conversation(r"chaos guarded (\S+)", step(1), step(2), DONE),
    conversation(r"chaos rejected (\S+)", step(1), DONE),
    conversation(
        r"chaos parent (\S+)",
        step(1),
        calls(_task("chaos leaf a {{1}}"), _task("chaos leaf b {{1}}")),
        step(2),
        DONE,
    ),
    conversation(
        r"chaos tree (\S+)",
        calls(_task("chaos middle x {{1}}", "lead"), _task("chaos middle y {{1}}", "lead")),
        step(1),
        DONE,
    ),
    conversation(
        r"chaos middle (\w+) (\S+)",
        step(1, "middle-{{1}}.txt", "{{2}}"),
        calls(_task("chaos leaf {{1}}a {{2}}"), _task("chaos leaf {{1}}b {{2}}")),
        DONE,
    ),
    conversation(
        r"chaos leaf (\w+) (\S+)",
        step(1, "leaf-{{1}}.txt", "{{2}}"),
        step(2, "leaf-{{1}}.txt", "{{2}}"),
        DONE,
    ),
    # Each attempt that is lost costs these a step: they must not come to their end before they are
    # ended.
    conversation(
        r"chaos (?:cancelled|late) (\S+)", *(step(number) for number in range(1, 30)), DONE
    ),
    conversation(r"chaos broken (\S+)", step(1), {"raise": "broken on purpose"}),
)


def write(folder: Path) -> tuple[Path, Path]:
    """Put the script and the agents' definitions into a folder; where they are."""
    agents = folder / "agents"
    agents.mkdir()
    for name, definition in AGENTS.items():
        (agents / f"{name}.yaml").write_text(f"name: {name}\n{definition}")
    return write_script(folder, *CONVERSATIONS), agents
