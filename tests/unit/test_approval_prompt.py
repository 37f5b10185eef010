"""Approvals of a run at the terminal: asked, approved by --yes, or answered elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest

from fanout.orchestrator.approvals import Decision
from fanout.orchestrator.cli.terminal import grid, output, questions
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.failures import AnsweredAlready

ALL: tuple[Decision, ...] = ("approve", "edit", "reject", "respond")


def approval(job_id: str = "root", decisions: tuple[Decision, ...] = ALL) -> Approval:
    return Approval(
        id=f"ap_{job_id}", job_id=job_id, agent="a", call_id="1", tool="execute",
        arguments={"command": "ls"}, decisions=decisions, sha256="0" * 64, hint="again",
    )  # fmt: skip


class Client:
    """Holds approvals until they are answered."""

    def __init__(self, *open_ones: Approval) -> None:
        self.open = list(open_ones)
        self.given: list[tuple[str, str, Any]] = []

    async def approvals(self) -> list[Approval]:
        return list(self.open)

    async def answer(self, approval_id: str, decision: str, **more: Any) -> str:
        if all(one.id != approval_id for one in self.open):
            raise AnsweredAlready("It was answered already.")
        self.open = [one for one in self.open if one.id != approval_id]
        self.given.append((approval_id, decision, more))
        return "root"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A person at a terminal, who types these lines and then nothing."""
    assert grid  # the view of a run has loaded it: its loop waits for no import
    monkeypatch.setattr(questions, "POLL_SECONDS", 0.01)

    def typing(*lines: str, ends: bool = False) -> None:
        monkeypatch.setattr(output, "stdin_is_terminal", lambda: True)
        monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
        left = list(lines)

        async def line(_question: str) -> str:
            if left:
                return left.pop(0)
            if ends:
                raise EOFError
            await asyncio.sleep(60)
            return ""

        monkeypatch.setattr(questions, "_line", line)

    return typing


async def answers(client: Client, *, yes: bool = False, seconds: float = 0.3) -> None:
    asking = questions.answer_approvals(
        cast(Any, client), "root", yes=yes, set_aside=nullcontext, jobs=lambda: {"root", "child"}
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asking, seconds)


@pytest.mark.parametrize(
    ("typed", "decision", "given"),
    [
        (("a",), "approve", {}),
        (("nonsense", "rej", "no"), "reject", {"message": "no"}),
        (("resp", "text"), "respond", {"response": "text"}),
        (
            ("e", "no json", "edit", '{"command": "pwd"}'),
            "edit",
            {"arguments": {"command": "pwd"}},
        ),
    ],
)
async def test_a_persons_decision_is_stored(
    terminal: Callable[..., None],
    typed: tuple[str, ...],
    decision: str,
    given: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal(*typed)
    client = Client(approval("child"))

    await answers(client)

    ((_, chosen, more),) = client.given
    assert chosen == decision
    assert given.items() <= more.items()
    assert "again\na (job child) wants to call execute with" in capsys.readouterr().err


async def test_yes_approves_the_runs_own_calls_and_no_others(terminal: Callable[..., None]) -> None:
    terminal()
    never = approval("root", ("reject",)).model_copy(update={"id": "ap_never"})
    client = Client(approval("root"), never, approval("stranger"))

    await answers(client, yes=True)

    assert [(name, decision) for name, decision, _ in client.given] == [
        ("ap_root", "approve"),
        ("ap_never", "reject"),
    ]


async def test_an_answer_from_elsewhere_ends_the_question(
    terminal: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal()
    client = Client(approval("root"))
    asyncio.get_running_loop().call_later(0.1, client.open.clear)

    await answers(client)

    assert "It was answered elsewhere." in capsys.readouterr().err
    assert client.given == []


async def test_at_the_end_of_input_the_command_that_answers_is_named(
    terminal: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(ends=True)
    client = Client(approval("root"))

    await answers(client)

    assert "fanout approve ap_root" in capsys.readouterr().err
    assert client.given == []
