"""Runs as they are after a morning's work, for pictures and for tests."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event

from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
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


CONFLICT = {"path": "billing/rates.py", "reason": "both sides changed the same lines"}
MIGRATED = ("catalog", "checkout", "search", "billing", "reports", "mobile")
LIBRARY = "Move the services to the new logging library, and keep every test green"


async def migration_run(hands: Hands, begin: float) -> str:
    """A run that has ended: of six tasks one failed, and the changes of one are in no file.

    Args:
        hands: The hands.
        begin: When it was submitted, in seconds since the epoch.
    """
    root = await hands.submit(LIBRARY, agent="coordinator", labels={"team": "platform"})
    [run] = await hands.claim(root)
    used = {"model_calls": 9, "input_tokens": 61_000, "output_tokens": 5_200, "cost_usd": 0.041}
    await hands.note(root, EventType.MODEL_REPLY, text="One task for each service.", used=used)
    ids = []
    for number, name in enumerate(MIGRATED):
        claim = await hands.start(
            run, agent=("refactorer", "tester")[number % 2], description=f"Move {name} over"
        )
        job_id = claim.spec.id
        ids.append(job_id)
        used = {"model_calls": 4 + number, "input_tokens": 9_000 * (number + 1)}
        used |= {"output_tokens": 900, "cost_usd": 0.006 * (number + 1)}
        await hands.note(job_id, EventType.MODEL_REPLY, text="It logs as the others do.", used=used)
        error: dict[str, object] = {}
        if name == "reports":
            why = "2 tests of 31 fail: test_totals_by_month and test_empty_report"
            error = {
                "state": JobState.FAILED,
                "error": {"type": "VerificationFailed", "message": why},
            }
        await hands.finish(claim, changed_bundle(f"{name}/log.py"), **error)
        if not error:
            landed = (
                {"outcome": "out", "conflicts": [CONFLICT]}
                if name == "billing"
                else {"outcome": "in"}
            )
            await hands.note(root, EventType.CHILD_LANDED, id=job_id, **landed)
        wait = 9.0 * (number // 3) * 4
        start = 14 + wait + number
        end = start + 48 + 17 * (number % 3) + 5 * number
        checked = f"verify:{end - 1}:{9 + number}:{1 if error else 0}"
        await hands.retime(
            job_id,
            f"running:{start} {checked}",
            begin=begin, submitted=12, started=start, finished=end,
        )  # fmt: skip
    await hands.finish(run, changed_bundle(), summary=SUMMARY)
    await hands.retime(
        root,
        "running:2 waiting:13 running:139 landing:142 verify:160:14:0 landed:161",
        begin=begin, submitted=0, started=2, finished=171,
    )  # fmt: skip
    for job_id in ids:
        await hands.redis.eval(LANDED_AT, 1, f"fanout:job:{job_id}", str(begin + 161))
    return root


LANDED_AT = """
local landed = redis.call('HGET', KEYS[1], 'landed')
if not landed then return end
landed = cjson.decode(landed)
landed.at = tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'landed', cjson.encode(landed))
"""
"""Sets when it was decided what became of a job's changes."""


async def submission(hands: Hands, count: int, **fields: object) -> list[str]:
    """Jobs of one `fanout submit --file`, a third of them ended."""
    first = make_spec("Check the links of chapter 0", **fields)
    specs = [first] + [
        make_spec(f"Check the links of chapter {number}", root_id=first.id, **fields)
        for number in range(1, count)
    ]
    ids = await hands.client.submit_many([(spec, None) for spec in specs])
    for claim in await hands.claim(*ids[: min(25, count // 2)]):
        used = {"model_calls": 1, "input_tokens": 2_000, "output_tokens": 150, "cost_usd": 0.0011}
        await hands.note(claim.spec.id, EventType.MODEL_REPLY, text="All links work.", used=used)
        if claim.spec.id in ids[: count // 3]:
            await hands.finish(claim)
    return ids


async def a_week(hands: Hands, now: float) -> tuple[str, str]:
    """Runs of a week for pictures: returns the one that works, and one that has ended.

    Args:
        hands: The hands.
        now: The time of the pictures, in seconds since the epoch.
    """
    older = await other_runs(hands, 14)
    for number, job_id in enumerate(older):
        begin = now - 86_400 * (1.3 + (len(older) - number) * 0.55)
        times = {"submitted": 0.0, "started": 3.0, "finished": 40.0 + 35 * number}
        state = (await hands.client.get(job_id)).state
        kept = ["submitted", *([] if state is JobState.QUEUED else ["started"])]
        kept += ["finished"] if state.is_terminal else []
        await hands.retime(job_id, "running:3", begin=begin, **{one: times[one] for one in kept})
    ended = await migration_run(hands, now - 86_400)
    for number, job_id in enumerate(await submission(hands, 50, agent="tester")):
        record = await hands.client.get(job_id)
        times = {"submitted": 0.0, "started": 2.0 + number, "finished": 32.0 + 2 * number}
        kept = ["submitted", *(["started"] if record.started_at else [])]
        kept += ["finished"] if record.finished_at else []
        await hands.retime(
            job_id, "running:2", begin=now - 900, **{one: times[one] for one in kept}
        )
    live = await run_of_the_bakery(hands)
    began = now - 150
    [root, tester, refactorer, writer] = await hands.client.tree(live)
    await hands.retime(root.id, "running:2", begin=began, submitted=0, started=2)
    await hands.retime(
        tester.id,
        "running:23 verify:83:12:0",
        begin=began, submitted=20, started=23, finished=84,
    )  # fmt: skip
    await hands.redis.eval(LANDED_AT, 1, f"fanout:job:{tester.id}", str(began + 88))
    await hands.retime(refactorer.id, "running:93", begin=began, submitted=90, started=93)
    await hands.retime(writer.id, "running:96 waiting:121", begin=began, submitted=91, started=96)
    return live, ended
