"""Runs as they are after a morning's work, for pictures and for tests."""

from __future__ import annotations

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
