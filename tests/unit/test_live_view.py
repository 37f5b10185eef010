"""What a person sees of a tree of jobs, within the lines and columns of a terminal."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fanout.orchestrator.cli.commands.diff import print_stat
from fanout.orchestrator.cli.commands.run_report import FailedJob, RunOutcome, print_outcome
from fanout.orchestrator.cli.terminal import formatting, output
from fanout.orchestrator.cli.terminal.live_view import Board, Watcher, _Picture, shown
from fanout.orchestrator.cli.terminal.run_view import _Lines
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.changes import ChangeKind, FileChange
from fanout.orchestrator.jobs.result import JobResult, Usage
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.scripts.progress import ScriptReader
from fanout.orchestrator.shortening import count
from tests.builders import make_spec

COLUMNS, LINES = 80, 24
ERASES_A_LINE = "\x1b[2K"
ROOT = "01rrrrrrrrrrrrrrrrrrrrrrrr"


def record(job_id: str, state: str, *, depth: int = 1, **fields: Any) -> JobRecord:
    parent = None if depth == 0 else fields.pop("parent_id", ROOT)
    spec = make_spec(
        fields.pop("description", f"part {job_id}"),
        id=job_id,
        agent=fields.pop("agent", "general-purpose"),
        parent_id=parent,
        root_id=ROOT,
        depth=depth,
    )
    known = {"state": state, "attempt": 1, "submitted_at": time.time(), "started_at": time.time()}
    return JobRecord.model_validate({**spec.model_dump(), **known, **fields})


def root(state: str = "waiting") -> JobRecord:
    return record(
        ROOT, state, depth=0, agent="coordinator", waiting_for="children: 3 of 300 have ended"
    )


def children(count: int, state: str, prefix: str = "c", **fields: Any) -> list[JobRecord]:
    return [record(f"{'0' * 22}{prefix}{number:03}", state, **fields) for number in range(count)]


def seen(board: Board, columns: int = COLUMNS, lines: int = LINES) -> list[str]:
    console = Console(width=columns, height=lines, file=io.StringIO(), record=True)
    console.print(board.render(lines, columns))
    return console.export_text().splitlines()


def a_tree_of(jobs: Sequence[JobRecord], **fields: Any) -> Board:
    return Board(records=[root(), *jobs], **fields)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50), (40, 10)])
@pytest.mark.parametrize("count", [3, 300])
def test_a_tree_fits_the_terminal(columns: int, lines: int, count: int) -> None:
    wide = children(count, "running", description="漢字 \x1b[2J\r\n" * 30, agent="a" * 60)
    asking = [job.model_copy(update={"approvals": (f"{job.id[:11]}x",)}) for job in wide[:9]]
    board = a_tree_of([*asking, *wide[9:]])

    drawn = seen(board, columns, lines)

    assert len(drawn) < lines
    assert max(map(cell_len, drawn)) <= columns
    assert "\x1b" not in "".join(drawn)


def test_the_root_comes_first_whatever_else_competes_for_lines() -> None:
    drawn = seen(a_tree_of(children(300, "running")))

    assert drawn[0] == "301 jobs: 300 running, 1 waiting"
    assert drawn[1].split() == ["ID", "AGENT", "WHAT", "NOW", "TIME", "TOKENS"]
    assert drawn[2].startswith("⏸")
    assert "waits for child" in drawn[2]
    assert drawn[-1] == "▶ … and 283 more running: general-purpose"


def test_of_300_jobs_failures_come_first_and_what_has_no_line_is_grouped_by_state_and_agent() -> (
    None
):
    why = "AgentFailed: It said no to v1.2 of it. And more."
    failed = children(12, "failed", "f", reason=why)
    jobs = [
        *children(200, "succeeded", "s"),
        *children(50, "running", "r", agent="reader"),
        *children(38, "queued", "q"),
        *failed,
    ]

    drawn = seen(a_tree_of(jobs), columns=200)
    narrow = seen(a_tree_of(jobs))

    assert len(narrow) < LINES
    assert narrow[3].split()[0] == "✘"
    assert narrow[4].strip() == "↳ AgentFailed: It said no to v1.2 of it."
    assert narrow[-1] == "✔ … and 200 more succeeded: general-purpose"
    assert len(drawn) < LINES
    symbols = [line.split()[0] for line in drawn[3:-4]]
    assert symbols == sorted(symbols, key="✘▶".index)
    assert symbols.count("✘") < 12
    assert symbols.count("▶") > 3
    assert "AgentFailed: It said no to v1.2 of it. " in drawn[3]
    assert "And more" not in "".join(drawn)
    assert drawn[-4].startswith("✘ … and ")
    assert drawn[-4].endswith("general-purpose, most often: AgentFailed: It said no to v1.2 of it.")
    assert drawn[-3].endswith("more running: reader")
    assert drawn[-2] == "· … and 38 more queued: general-purpose"
    assert drawn[-1] == "✔ … and 200 more succeeded: general-purpose"


def test_rows_differ_where_their_titles_begin_alike() -> None:
    what = "Look at module src/part{:02}.py and list all of its functions and classes"
    jobs = [
        job.model_copy(update={"description": what.format(number)})
        for number, job in enumerate(children(6, "running"))
    ]

    narrow, wide = (seen(a_tree_of(jobs), columns)[3:] for columns in (80, 200))

    assert [f"…part{number:02}.py and" in row for number, row in enumerate(narrow)] == [True] * 6
    assert [what.format(number) in row for number, row in enumerate(wide)] == [True] * 6


def test_ids_of_one_millisecond_are_shown_by_eight_characters_that_differ() -> None:
    ids = [f"01m83xvp1r2nrpy8r3bnsm8zn{end}" for end in "de"]

    assert [formatting.short_id(job_id) for job_id in ids] == ["bnsm8znd", "bnsm8zne"]
    assert formatting.short_id("nightly-build-00000001") == "nightly-build-00000001"
    assert formatting.with_short_ids(f"Not job {ids[0]}.") == "Not job bnsm8znd."
    path = f"/state/{ids[0]}/base and {ids[0]}.json"
    assert formatting.with_short_ids(path) == path


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1204, "1,204 files")]
)
def test_a_count_agrees_with_its_noun(number: int, said: str) -> None:
    assert count(number, "file") == said


def test_of_jobs_without_a_common_root_those_that_run_are_shown_first() -> None:
    jobs = [record(f"q{number:03}{'0' * 22}", "queued", depth=0) for number in range(100)]
    running = record(f"r{'0' * 25}", "running", depth=0)

    assert any("▶" in line for line in seen(Board(records=[*jobs, running])))


def test_a_job_is_never_shown_without_its_parent() -> None:
    parents = children(30, "waiting", "p")
    grandchild = record("g" * 26, "running", depth=2, parent_id=parents[29].id)

    drawn = seen(a_tree_of([*parents, grandchild]))

    assert drawn[-2].strip().startswith("▶ gggg")
    assert drawn[-3].strip().startswith(f"⏸   {parents[29].id[-8:]}")


def test_children_stand_directly_below_their_parents() -> None:
    first, second = children(2, "waiting", "p")
    below_first = record("g" * 26, "running", depth=2, parent_id=first.id)
    below_second = record("h" * 26, "running", depth=2, parent_id=second.id)

    drawn = seen(a_tree_of([first, second, below_second, below_first]))

    assert [line.split()[1][-4:] for line in drawn[2:]] == ["rrrr", "p000", "gggg", "p001", "hhhh"]


def test_the_command_that_answers_an_approval_is_never_cut() -> None:
    asking = record("a" * 26, "waiting", approvals=("deadbeef0123",), waiting_for="approval " * 20)

    drawn = seen(a_tree_of([asking]))

    assert drawn[-1].endswith("— fanout approve deadbeef012")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def test_notices_break_between_words_and_commands_are_left_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 24)))
    command = "  fanout apply 01rrrrrrrrrrrrrrrrrrrrrrrr --include-executable-config"
    output.notice(f"Every word of this sentence is whole, also 漢字漢字漢字漢字.\n{command}")

    *sentence, last = terminal.getvalue().splitlines()
    assert last == command
    assert max(map(cell_len, sentence)) <= 40
    assert " ".join(sentence) == "Every word of this sentence is whole, also 漢字漢字漢字漢字."


def test_nothing_is_wrapped_or_coloured_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output.notice("word " * 100)
    _Lines(None).write("a line", "red")

    assert capsys.readouterr().err == f"{'word ' * 100}\na line\n"


def test_lines_wait_while_a_person_is_asked() -> None:
    drawn = io.StringIO()
    lines = _Lines(Console(file=drawn))

    with lines.held():
        lines.write("said meanwhile")
        assert drawn.getvalue() == ""
    lines.write("said afterwards")

    assert drawn.getvalue() == "said meanwhile\nsaid afterwards\n"


def change(path: str) -> FileChange:
    return FileChange(path=path, change=ChangeKind.ADDED, lines_added=1)


def test_the_columns_of_a_stat_are_straight_under_wide_names() -> None:
    printed: list[str] = []
    print_stat([change("漢字.txt"), change("longer-name.txt")], printed.append)

    assert len({cell_len(line[: line.index("added")]) for line in printed[:2]}) == 1


def test_the_end_of_a_run_names_a_screen_of_files_at_most_and_the_next_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [change(f"{number}.txt") for number in range(300)]
    printed: list[str] = []
    print_stat(files, printed.append, most=20)
    assert printed[-2:] == ["… and 280 more", "300 files changed, +300 -0"]

    ended = JobResult(job_id=ROOT, state=JobState.SUCCEEDED, success=True, attempts=1)
    failed = [FailedJob(f"f{number}", "tester", "failed", "No: no") for number in range(5)]
    print_outcome(RunOutcome(ended, Usage(), None, (), tuple(failed)), None, None)

    said = capsys.readouterr().err.splitlines()
    start = said.index("Done, 5 tasks failed:")
    assert said[start + 1 : start + 6] == [
        *(f"✗ tester f{number} failed: No: no" for number in range(3)),
        "… and 2 more that did not succeed",
        f"  To see all: fanout tree {ROOT[-8:]}",
    ]
    assert said[-1] == f'  To continue: fanout run --continue {ROOT[-8:]} "…"'


async def _nobody() -> list[JobRecord]:
    return []


def test_a_question_is_not_erased_by_the_tree_that_comes_back() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=COLUMNS, height=LINES, force_terminal=True)
    watcher = Watcher(cast("JobClient", None), _nobody)
    watcher.board = a_tree_of(children(9, "running"))
    watcher.draw(console)

    with watcher.set_aside():
        asked = screen.tell()
        screen.write("approve, edit, reject? a\n")
    watcher.stop_drawing()

    assert ERASES_A_LINE in screen.getvalue()[:asked]
    back = screen.getvalue()[asked:]
    assert ERASES_A_LINE not in back[: back.index("10 jobs")]


async def test_an_interrupted_picture_is_erased_because_its_jobs_would_run_for_ever() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=COLUMNS, height=LINES, force_terminal=True)
    with pytest.raises(KeyboardInterrupt):
        async with shown(cast("JobClient", None), _nobody, console=console):
            raise KeyboardInterrupt

    _, picture, after = screen.getvalue().rpartition("0 jobs")
    assert picture
    assert ERASES_A_LINE in after


@pytest.mark.parametrize(("lines", "cleared"), [(30, False), (10, True)])
def test_what_a_narrower_terminal_wraps_is_erased_before_the_next_picture(
    lines: int, *, cleared: bool
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=120, height=lines, force_terminal=True)
    picture = _Picture(console, a_tree_of(children(6, "running", description="look " * 40)))
    before = picture.render()
    wide = [line.cell_len for line in before.renderables if isinstance(line, Text)]
    console.width = 50
    picture.render()

    more = sum(-(-cells // 50) - 1 for cells in wide)
    assert screen.getvalue().count(ERASES_A_LINE) == more > 6

    console.width = 120
    picture.render()
    assert ("\x1b[2J" in screen.getvalue()) is cleared


def test_a_script_has_lines_for_its_newest_phases_and_what_it_waits_for():
    script = ScriptReader()
    for number in range(6):
        phase(script, f"Round {number}", *(f"task {number}.{one}" for one in range(5)))
    records = [root(), *(record(f"{number:026}", "running") for number in range(50))]

    lines = seen(Board(records, scripts={ROOT: script}))

    assert len(lines) <= LINES - 1
    assert lines[1:5] == [f"Round {number}: 5 asked, 5 waiting" for number in (2, 3, 4, 5)]
    assert lines[5] == "  waits for task 0.0, task 0.1, task 0.2 and 27 more"


def test_a_call_that_two_attempts_have_written_is_counted_once():
    script = ScriptReader()
    phase(script, "Review", "a", "b")
    calls = [{"key": "a", "function": "agent", "label": "a"}]
    script.add(entry(EventType.SCRIPT_CALL, calls=calls))
    for key, is_ok in (("a", True), ("a", True), ("b", False)):
        script.add(entry(EventType.SCRIPT_RESULT, key=key, ok=is_ok))

    (shown_phase,) = script.progress().phases
    assert formatting.script_phase(shown_phase) == "Review: 2 asked, 1 answered, 1 failed"


def phase(script: ScriptReader, name: str, *labels: str) -> None:
    calls = [{"key": label, "function": "agent", "label": label} for label in labels]
    script.add(entry(EventType.SCRIPT_PHASE, name=name))
    script.add(entry(EventType.SCRIPT_CALL, calls=calls))


def entry(kind: EventType, **data: Any) -> JournalEvent:
    return JournalEvent(id="1-0", at=0, job_id=ROOT, attempt=1, type=kind, data=data)
