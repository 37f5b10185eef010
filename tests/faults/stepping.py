"""A loopback model that leads jobs through numbered steps, and holds chosen jobs at chosen steps.

Each step is one command that writes a line and a file. What the model says next it reads from the
request, so it needs no memory of its own, and its counts are of what was asked twice.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.integration.models.wires import Answer, Gemini, call, text
from tests.loopback import LoopbackHandler, gemini_environment, loopback_server

Moment = Literal["request", "command", "ended", "between"]
"""Where a job is held: its request is sent and unanswered; its command runs; its command has ended
and nothing says so; its command's result is written down and the next request is not made."""

STEPS = 30
BEGUN = "has begun"
"""What a held command prints."""


Holds = dict[tuple[str, int], Moment]
"""By job name and step; each holds once."""


@dataclass
class SteppingModel:
    """What was asked and answered, by job name and step; step STEPS + 1 is the last word."""

    url: str
    holds: Holds
    completed: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The requests whose answers went out whole."""
    told: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """What each step's request says of the step before."""
    held: set[tuple[str, int]] = field(default_factory=set)
    """The requests that are held, or were."""
    closing: threading.Event = field(default_factory=threading.Event)

    def environment(self) -> dict[str, str]:
        return gemini_environment(self.url)

    def parts(self, job: str, step: int) -> list[dict[str, Any]]:
        """What the model says at a step."""
        if step > STEPS:
            return [text("Finished.\n\n## Summary\nAll steps are done.")]
        command = f"echo step {step} >> steps.txt; echo {step} > step-{step}.txt"
        if self.holds.get((job, step)) == "command":
            command += f"; echo {BEGUN}: {step}; sleep 300; echo too late >> steps.txt"
        return [call("execute", command=command)]


@contextmanager
def stepping_model(holds: Holds) -> Iterator[SteppingModel]:
    """Serve on a port of 127.0.0.1."""
    with loopback_server(_Handler, lambda url: SteppingModel(url, holds)) as state:
        try:
            yield state
        finally:
            state.closing.set()


class _Handler(LoopbackHandler):
    def post(self) -> None:
        request, state = self.read_json(), self.state
        parts = [part for content in request["contents"] for part in content["parts"]]
        found = re.search(r"\bjob-\d+\b", str(parts[0]))
        assert found
        job = found.group()
        results = [
            part["functionResponse"]["response"] for part in parts if "functionResponse" in part
        ]
        step = len(results) + 1
        if results:
            state.told[job, step] = results[-1]
        if state.holds.get((job, step)) == "request" and (job, step) not in state.held:
            state.held.add((job, step))
            state.closing.wait()
            return
        answer = Gemini().whole(Answer(parts=state.parts(job, step)))
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_json(200, answer)
            state.completed[job, step] += 1
