"""A conversation in a database survives the end of its process in the middle of a tool call."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.adk.sessions import DatabaseSessionService, Session
from google.genai import types

from tests.integration.conversations.conversation_process import WHO
from tests.integration.scripts import call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TODOS = [{"content": "look", "status": "in_progress"}]
BEFORE = [
    {
        "calls": [
            call("write_todos", todos=TODOS),
            call("write_file", file_path="/notes.md", content="kept"),
        ]
    },
    {"calls": [call("record", name="first")]},
]
AFTER = [
    {
        "text": "told: {{last_result}}",
        "calls": [call("read_file", file_path="/notes.md"), call("read_todos")],
    },
    {"calls": [call("record", name="last")]},
    {"text": "done"},
]


class Place:
    """The files of a conversation, and the processes on them."""

    def __init__(self, folder: Path, middle: Sequence[dict[str, Any]]) -> None:
        self.database, self.log = folder / "sessions.db", folder / "log"
        self._script = folder / "script.yaml"
        replies = [*BEFORE, {"calls": list(middle)}, *AFTER]
        self._script.write_text(yaml.safe_dump({"conversations": [{"replies": replies}]}))

    def process(self, how: str) -> subprocess.Popen[bytes]:
        module = "tests.integration.conversations.conversation_process"
        arguments = [str(self.database), str(self._script), str(self.log), how]
        return subprocess.Popen([sys.executable, "-m", module, *arguments])

    def kill_in_the_middle(self) -> None:
        process = self.process("start")
        deadline = time.monotonic() + 60
        while not self.log.exists() or "stall" not in self.log.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
        process.wait()

    def session(self) -> Session:
        async def read() -> Session | None:
            async with DatabaseSessionService(f"sqlite+aiosqlite:///{self.database}") as sessions:
                return await sessions.get_session(**WHO)

        found = asyncio.run(read())
        assert found is not None
        return found

    @property
    def ran(self) -> list[str]:
        return self.log.read_text().split("\n")[:-1]


def results(session: Session, name: str) -> list[dict[str, Any]]:
    answers = [answer for event in session.events for answer in event.get_function_responses()]
    return [dict(answer.response or {}) for answer in answers if answer.name == name]


def said(session: Session) -> str:
    parts = [
        part for event in session.events for part in (event.content or types.Content()).parts or []
    ]
    return " ".join(part.text for part in parts if part.text)


def test_a_new_message_goes_on_and_no_call_runs_twice(tmp_path: Path) -> None:
    place = Place(tmp_path, [call("record", name="second"), call("stall")])
    place.kill_in_the_middle()
    before = place.session()
    assert place.process("message").wait() == 0
    after = place.session()
    assert sorted(place.ran) == ["record first", "record last", "record second", "stall"]
    assert [event.id for event in after.events][: len(before.events)] == [
        event.id for event in before.events
    ]
    assert "kept" in str(results(after, "read_file"))
    assert results(after, "read_todos") == [{"todos": TODOS}]
    told = said(after).partition("told: ")[2]
    assert "Interrupted" in told, "the model knows how the first process ended"
    assert told.endswith("done")
    assert after.state["file:/notes.md"]["content"] == "kept"


def test_the_broken_run_goes_on_with_the_call_that_was_not_answered(tmp_path: Path) -> None:
    place = Place(tmp_path, [call("stall")])
    place.kill_in_the_middle()
    assert place.process("invocation").wait() == 0
    assert place.ran == ["record first", "stall", "stall", "record last"]
    after = place.session()
    assert results(after, "stall") == [{"stalled": "no longer"}]
    assert results(after, "read_todos") == [{"todos": TODOS}]
