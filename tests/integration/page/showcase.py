"""Runs as they are after a morning's work, for pictures and for tests."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event

from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.integration.page.served_page import Hands, bundle

BEFORE = '''"""Prices of the bakery."""


def total(items, vat=0.19):
    price = 0
    for item in items:
        price = item.price  # only the last one counts
    return price * (1 + vat)


def rounded(price):
    return round(price, 2)
'''
AFTER = '''"""Prices of the bakery."""


def total(items, vat=0.19):
    price = 0
    for item in items:
        price += item.price * item.count
    return price * (1 + vat)


def rounded(price, digits=2):
    return round(price, digits)
'''
THEIRS = BEFORE.replace("price = item.price  # only the last one counts", "price += item.price")
TODOS = [
    {"content": "Read the tests that fail", "status": "completed"},
    {"content": "Mend the sum in prices.py", "status": "in_progress"},
    {"content": "Run all tests once more", "status": "pending"},
]
SUMMARY = "The total was that of the last item only. It is the sum now, and the tests pass."


def changed_bundle(path: str = "bakery/prices.py", after: str = AFTER) -> bytes:
    long = "\n".join(f"line {number}: {'x' * (number % 20)}" for number in range(100_000))
    notes = "docs/a long folder name/with spaces/notes.md"
    return bundle(
        {"path": path, "change": "modified", "lines_added": 3, "lines_removed": 3}
        | {"before": BEFORE.encode(), "after": after.encode()},
        {"path": "data/large.txt", "change": "added", "lines_added": 100_000}
        | {"after": long.encode()},
        {"path": notes, "change": "added", "lines_added": 2} | {"after": b"# Notes\nNothing else."},
        {"path": "logo.png", "change": "modified", "binary": True, "size_bytes": 48_213}
        | {"before": b"\0PNG", "after": b"\0PNG2"},
    )


async def run_of_the_bakery(hands: Hands) -> str:
    """A live run with three tasks: one has ended, one runs, one waits for a person."""
    root = await hands.submit(
        "Mend the failing tests of the bakery and keep its prices right",
        agent="coordinator",
        labels={"team": "bakery", "sprint": "42"},
        verify="python -m pytest -q",
    )
    [run] = await hands.claim(root)
    await hands.note(root, EventType.SANDBOX_READY, sandbox="docker", host="h1", files=31)
    await hands.note(root, EventType.MODEL_REQUEST, model="gemini-2.5-flash", tokens=2_130)
    text = "Three tests fail. I give each module to a task of its own, and check all at the end."
    used = {"model_calls": 3, "input_tokens": 18_400, "output_tokens": 1_220, "cost_usd": 0.0123}
    calls = [{"tool": "tasks"}]
    await hands.note(root, EventType.MODEL_REPLY, text, text=text, calls=calls, used=used)
    await hands.note(root, EventType.TODOS, "1 of 3 done", todos=TODOS)
    tester = await hands.start(run, agent="tester", description="Find out why test_prices fails")
    tester_id = tester.spec.id
    data = {"id": "c1", "tool": "execute", "arguments": {"command": "python -m pytest -q -x"}}
    await hands.note(tester_id, EventType.TOOL_CALL, "execute python -m pytest", **data)
    output = "E   assert 1.19 == 4.76\n1 failed, 12 passed in 0.41s"
    await hands.note(tester_id, EventType.LOG, stream="stdout", text=output)
    results = [{"tool": "execute", "response": {"exit_code": 1, "output": output}}]
    await hands.note(
        tester_id,
        EventType.TOOL_RESULT,
        results=results,
        used={"model_calls": 2, "input_tokens": 5_100, "output_tokens": 310, "cost_usd": 0.0031},
    )
    verified = {"command": "python -m pytest -q", "exit_code": 0, "output_tail": "13 passed"}
    await hands.finish(
        tester, changed_bundle(), summary=SUMMARY, verified=verified, sandbox="docker", attempts=1
    )
    landed = {"outcome": "out", "reason": "conflicts with the change of another task"}
    conflict = {"path": "bakery/prices.py", "reason": "both sides changed the same lines"}
    await hands.note(root, EventType.CHILD_LANDED, id=tester_id, **landed, conflicts=[conflict])
    refactorer = await hands.start(
        run, agent="refactorer", description="Take the VAT out of the recipes"
    )
    await hands.note(
        refactorer.spec.id, EventType.TOOL_CALL, "edit_file recipes.py", tool="edit_file", id="c2"
    )
    writer = await hands.start(
        run, agent="general-purpose", description="Publish the new price list"
    )
    await hands.ask(
        writer, "execute", command="rsync -a dist/ shop.example.com:/srv/prices/", timeout=60
    )
    return root


async def ended_run(hands: Hands) -> str:
    root = await hands.submit("Explain how the queue keeps its order", agent="researcher")
    [claim] = await hands.claim(root)
    await hands.note(root, EventType.TODOS, todos=[{**one, "status": "completed"} for one in TODOS])
    await hands.note(root, EventType.MODEL_REPLY, text=SUMMARY, used={"input_tokens": 900})
    await hands.finish(claim, changed_bundle(after=THEIRS), summary=SUMMARY, output={"ok": True})
    return root


async def other_runs(hands: Hands, count: int) -> list[str]:
    """Many runs in all states."""
    states = [JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, None, None]
    ids = []
    for number in range(count):
        team = ("search", "billing", "mobile")[number % 3]
        ids.append(
            await hands.submit(
                f"Bring the {team} service up to the new logging library, part {number}",
                agent=("coordinator", "tester", "researcher")[number % 3],
                labels={"team": team},
            )
        )
    claims = await hands.claim(*ids[: count - 3])
    for number, claim in enumerate(claims):
        state = states[number % len(states)]
        used = {"input_tokens": 1_000 * number, "output_tokens": 100, "cost_usd": 0.004 * number}
        line = f"edits handlers/{number}.py"
        await hands.note(claim.spec.id, EventType.LOG, line, text=line, used=used)
        if state is not None:
            failed = {"type": "VerificationFailed", "message": "2 tests fail"}
            error = {} if state is JobState.SUCCEEDED else {"error": failed}
            await hands.finish(claim, state=state, **error)
    await hands.client.cancel(ids[-1])
    return ids


RELEASE_NOTES = """## What I found

The release needs **two** changes, see [the guide](https://docs.example.com/release) first:

1. `version.py` says *0.9*, and the tag is `v1.0`
2. the changelog has no date
   - so `make release` stops

| File | Lines | State |
|---|---:|:-:|
| `version.py` | 1 | ~~old~~ new |
| `CHANGELOG.md` | 12 | open |

```python
def version():
    return "1.0"  # as the tag says
```

> Nothing else is touched.
"""
THOUGHTS = "The tag is newer than the file.\nI change the file, not the tag."
RELEASE_PLAN = ["Read the version", "Change it everywhere", "Publish"]


def adk_event(*parts: dict[str, Any]) -> dict[str, Any]:
    """What an entry of a journal holds of the agent's session."""
    return {"event": {"author": "coordinator", "content": {"role": "model", "parts": [*parts]}}}


def event_json(*parts: dict[str, Any]) -> bytes:
    """The same as a blob, as a valid event of the ADK."""
    content = {"role": "user", "parts": [*parts]}
    return (
        Event.model_validate({"author": "coordinator", "content": content})
        .model_dump_json()
        .encode()
    )


class Talk:
    """Writes the entries of one job as a worker does.

    Args:
        hands: Plays the worker.
        job_id: The job.
    """

    def __init__(self, hands: Hands, job_id: str) -> None:
        self._hands = hands
        self._job_id = job_id

    async def note(self, kind: EventType, **data: Any) -> None:
        """Append an entry."""
        await self._hands.note(self._job_id, kind, **data)

    async def ask_model(self) -> None:
        """Send a request to the model."""
        await self.note(EventType.MODEL_REQUEST, id="r", model="gemini-2.5-flash", tokens=2_000)

    async def say(self, text: str = "", *, thoughts: str = "", **calls: tuple[str, Any]) -> None:
        """Let the model reply with a text and calls, each an id with a tool and its arguments."""
        parts: list[dict[str, Any]] = [{"text": thoughts, "thought": True}] if thoughts else []
        parts += [{"text": text}] if text else []
        parts += [
            {"function_call": {"id": call_id, "name": tool, "args": arguments}}
            for call_id, (tool, arguments) in calls.items()
        ]
        listed = [{"id": call_id, "tool": tool} for call_id, (tool, _) in calls.items()]
        usage = {"input_tokens": 2_000, "output_tokens": 80, "cached_tokens": 0}
        data = {"author": "coordinator", "text": text[:2_000], "calls": listed, "usage": usage}
        await self.note(EventType.MODEL_REPLY, **data, **adk_event(*parts))
        for call_id, (tool, arguments) in calls.items():
            await self.note(EventType.TOOL_CALL, id=call_id, tool=tool, arguments=arguments)

    async def answer(self, **results: tuple[str, Any]) -> None:
        """Let tools return, each an id with the tool and its result."""
        parts = [
            {"function_response": {"id": call_id, "name": tool, "response": result}}
            for call_id, (tool, result) in results.items()
        ]
        short = [
            {"id": call_id, "tool": tool, "result": str(result)[:2_000]}
            for call_id, (tool, result) in results.items()
        ]
        await self.note(EventType.TOOL_RESULT, results=short, **adk_event(*parts))

    async def plan(self, done: int) -> None:
        """Write the plan with so many steps done."""
        states = ["completed"] * done + ["in_progress"] + ["pending"] * 3
        todos = [
            {"content": step, "status": state}
            for step, state in zip(RELEASE_PLAN, states, strict=False)
        ]
        call = f"todos{done}"
        await self.say(**{call: ("write_todos", {"todos": todos})})
        await self.note(EventType.TODOS, todos=todos)
        await self.answer(**{call: ("write_todos", {"status": "success", "count": len(todos)})})


async def conversation_of_a_release(hands: Hands) -> str:
    """A live job in whose conversation everything happens that can happen."""
    root = await hands.submit("Prepare release 1.0 and publish it", agent="coordinator")
    [claim] = await hands.claim(root)
    talk = Talk(hands, root)
    await talk.note(
        EventType.SESSION_EVENT,
        author="user",
        text="Prepare release 1.0 and publish it",
        **adk_event({"text": "Prepare release 1.0 and publish it"}),
    )
    await talk.note(EventType.SANDBOX_READY, sandbox="docker", host="h1", files="31")
    await talk.ask_model()
    await talk.plan(0)
    await talk.ask_model()
    await talk.say(
        RELEASE_NOTES,
        thoughts=THOUGHTS,
        read=("read_file", {"file_path": "/workspace/version.py"}),
        test=("execute", {"command": "python -m pytest -q"}),
        lost=("execute", {"command": "git fetch --tags"}),
    )
    log = "\n".join(f"tests/test_{number}.py F" for number in range(300))
    await talk.answer(
        test=("execute", {"status": "error", "exit_code": 1, "output": f"{log}\n3 failed"}),
        read=("read_file", {"status": "success", "content": '     1\tVERSION = "0.9"'}),
    )
    await talk.plan(1)
    await talk.ask_model()
    edit = {"file_path": "/workspace/version.py"}
    edit |= {"old_string": 'VERSION = "0.9"', "new_string": 'VERSION = "1.0"'}
    await talk.say("", edit=("edit_file", edit))
    path = {"status": "success", "path": "/workspace/version.py", "occurrences": 1}
    await talk.answer(edit=("edit_file", path))
    await talk.note(EventType.MESSAGE, text="Mention the new logo, too")
    await talk.ask_model()
    tasks = {
        "one": ("task", {"subagent_type": "tester", "description": "Test the release on Windows"}),
        "two": ("task", {"subagent_type": "tester", "description": "Write the release notes"}),
    }
    await talk.say("Two agents help me.", **tasks)
    first = await hands.start(claim, agent="tester", description="Test the release on Windows")
    second = await hands.start(claim, agent="tester", description="Write the release notes")
    await hands.note(second.spec.id, EventType.LOG, "writes NOTES.md", text="writes NOTES.md")
    await hands.finish(first, summary="It **works** on Windows.\nAll of it.")
    await talk.note(EventType.LANDING, children=[first.spec.id], before="0")
    check = {"command": "pytest -q", "exit_code": 1, "output_tail": "1 failed", "seconds": 2.5}
    await talk.note(EventType.VERIFY, **check, children=[first.spec.id], of=1)
    why = "windows.py: this change breaks the tests"
    await talk.note(EventType.CHILD_LANDED, id=first.spec.id, outcome="out", reason=why)
    result = {"status": "success", "job_id": first.spec.id, "summary": "It **works** on Windows."}
    await talk.answer(one=("task", result))
    await talk.note(EventType.LOG, stream="model", text="gemini-2.5-flash has too many requests")
    await talk.ask_model()
    await talk.say("", run=("execute", {"command": "make release"}))
    await talk.note(EventType.LOG, stream="output", text="building the wheel …")
    return root
