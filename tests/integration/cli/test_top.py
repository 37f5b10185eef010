"""`fanout top` shows an installation on one screen, and prints it for programs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from dataclasses import dataclass, field

import pyte
import pytest

from fanout.orchestrator.client.fleet_view import MAX_JOBS, MAX_SHOWN
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.fleet_totals import FleetTotals
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.totals import MODEL_COST, MODEL_USAGE
from tests.builders import make_spec, make_worker
from tests.integration.cli.conftest import Fanout

pytestmark = [
    pytest.mark.redis,
    pytest.mark.timeout(300),
    pytest.mark.blocks_loop("the commands are waited for in the loop"),
]

HOSTILE = "a\x1b[2Jb\u202ec\nd"
"""A name that erases the screen, turns the text around and has two lines."""


@pytest.fixture
async def installation(ledger_url: str) -> None:
    """Two hosts: one with a busy and a stopping worker, one that hangs; a queue of each tenant."""
    redis = connect(ledger_url)
    ledger = Ledger(redis, Keys())
    busy = make_worker("one-1", host="one", concurrency=2, running=2, sandbox="docker")
    await ledger.register(busy, 600)
    await ledger.register(make_worker("one-2", host="one", draining=True), 600)
    hangs = make_worker("two-1", host="two", draining=True, unfit="12 threads hang")
    await ledger.register(hangs, 600)
    running = [
        make_spec("Mend the tests of the tax module.", agent="tester", tenant="a-team"),
        make_spec(HOSTILE, agent="general-purpose", labels={HOSTILE: HOSTILE}),
    ]
    await ledger.submit(running)
    await ledger.dispatch(10)
    for spec in running:
        assert isinstance(await ledger.claim(spec.id, busy, 600), Claim)
    await ledger.submit([make_spec("later", tenant="a-team") for _ in range(3)])
    await ledger.submit([make_spec("later", agent="tester", tenant="b-team")])
    used = {(MODEL_USAGE.name, "m", "input"): 1234.0, (MODEL_COST.name, "m"): 0.25}
    await FleetTotals(redis, Keys()).add("one-1", "first", used)
    await redis.aclose()


@dataclass
class Terminal:
    """A command in a terminal, and what its screen shows."""

    process: subprocess.Popen[bytes]
    ours: int
    screen: pyte.Screen
    written: bytes = field(default=b"", init=False)

    @classmethod
    def start(cls, fanout: Fanout, columns: int, lines: int, *arguments: str) -> Terminal:
        ours, theirs = pty.openpty()
        _resize(theirs, columns, lines)
        process = subprocess.Popen(
            Fanout.argv("top", *arguments), cwd=fanout.folder, env=fanout.env,
            stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=lambda: _own_terminal(theirs),  # noqa: PLW1509 - no thread has started
        )  # fmt: skip
        os.close(theirs)
        return cls(process, ours, pyte.Screen(columns, lines))

    def resize(self, columns: int, lines: int) -> None:
        self.screen = pyte.Screen(
            columns, lines
        )  # what it shows until the next picture is a mixture
        _resize(self.ours, columns, lines)

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def read_until(self, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Read what it draws until that is on the screen; the test's own limit ends the wait."""
        stream = pyte.ByteStream(self.screen)
        while not is_there(self.shown()):
            piece = self._read()
            assert piece, self.shown()
            stream.feed(piece)
        return self.shown()

    def end(self) -> int:
        while self._read():
            pass
        return self.process.wait(60)

    def _read(self) -> bytes:
        try:
            piece = os.read(self.ours, 65536)
        except OSError:  # the other side is closed
            return b""
        self.written += piece
        return piece


def _own_terminal(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _resize(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def has(*texts: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(any(text in line for line in lines) for text in texts)


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize(("columns", "lines", "key"), [(80, 24, b"q"), (200, 50, b"\x03")])
def test_one_screen_shows_all_and_a_key_ends_it_cleanly(
    fanout: Fanout, columns: int, lines: int, key: bytes
) -> None:
    terminal = Terminal.start(fanout, columns, lines)
    shown = terminal.read_until(has("NOW", "q: quit"))
    terminal.press(key)
    assert terminal.end() == 0
    text = "\n".join(shown)
    if os.environ.get("SHOW"):
        print(f"\n{text}\n{'-' * columns}")
    assert "2 hosts, 3 workers: 1 fit, 1 draining, 1 unfit" in text
    assert "2 slots used, 0 free" in text
    assert "4 queued" in text
    assert "12 threads hang" in text
    order = [text.index(name) for name in ("two-1", "one-2", "one-1 ")]
    assert order == sorted(order)
    assert "a-team" in text
    assert "b-team" in text
    assert "\x1b[2Jb" not in terminal.written.decode()
    assert "\u202e" not in text
    assert terminal.written.count(b"\x1b[?1049l") == 1, "the screen before is shown again"


@pytest.mark.usefixtures("installation")
def test_it_follows_the_size_of_its_terminal(fanout: Fanout) -> None:
    terminal = Terminal.start(fanout, 80, 24)
    wide = terminal.read_until(has("q: quit"))
    terminal.resize(50, 12)
    terminal.process.send_signal(signal.SIGWINCH)
    low = terminal.read_until(
        lambda lines: [line.split(" ")[0] for line in lines[3:8:2]] == ["HOST", "TENANT", "ID"]
    )
    terminal.press(b"q")
    assert terminal.end() == 0
    assert len(wide) == 24
    assert low[0].startswith("fanout")
    assert low[0].endswith("…")


@pytest.mark.usefixtures("installation")
def test_programs_get_one_document_and_pipes_a_plain_table(fanout: Fanout) -> None:
    view = fanout("top", "--json").json
    assert view["worker_states"] == {"fit": 1, "draining": 1, "unfit": 1}
    assert [host["name"] for host in view["hosts"]] == ["two", "one"]
    assert {(one["tenant"], one["job_class"], one["jobs"]) for one in view["queues"]} == {
        ("a-team", "general-purpose:1", 3),
        ("b-team", "tester:1", 1),
    }
    assert {job["state"] for job in view["jobs"]} == {"running"}
    assert all(job["id"] for job in view["jobs"])
    assert 0 < view["tokens_per_minute"] <= 1234
    assert 0 < view["cost_usd_per_minute"] <= 0.25
    assert view["redis_bytes"] > 0

    plain = fanout("top")
    assert "two-1" in plain.out
    assert "\x1b" not in plain.out


async def test_a_view_is_small_however_large_the_installation_is(
    fanout: Fanout, ledger_url: str
) -> None:
    redis = connect(ledger_url)
    ledger = Ledger(redis, Keys())
    for number in range(MAX_SHOWN + 50):
        await ledger.register(make_worker(f"w{number}", host=f"h{number}"), 600)
    specs = [make_spec("x", tenant=f"t{number}") for number in range(MAX_SHOWN + 50)]
    await ledger.submit(specs)
    await ledger.dispatch(MAX_JOBS + 20)
    await redis.aclose()
    view = (await asyncio.to_thread(fanout, "top", "--json")).json
    assert len(view["workers"]) == len(view["hosts"]) == MAX_SHOWN
    assert view["host_count"] == view["worker_states"]["fit"] == MAX_SHOWN + 50
    assert len(view["jobs"]) == MAX_JOBS
    assert len(view["queues"]) <= MAX_SHOWN


def test_a_service_that_is_none_is_named(fanout: Fanout) -> None:
    without_key = fanout("top", "--url", "http://127.0.0.1:1")
    assert (without_key.code, "FANOUT_KEY" in without_key.err) == (2, True)
    away = fanout("top", "--url", "http://127.0.0.1:1", env={"FANOUT_KEY": "k"})
    assert away.code == 3
    assert away.err.strip() == "http://127.0.0.1:1 cannot be reached."
