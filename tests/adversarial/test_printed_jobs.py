"""A job that is hostile in every field, printed by every command that reads jobs."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fanout.orchestrator.cli.app import SECTIONS
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.valid_text import printable
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.forked import ForkedProcess
from tests.integration.cli.conftest import Fanout, fanout, ledger_url, private_redis
from tests.integration.page.hostile import hostile_jobs
from tests.integration.page.served_page import Hands

__all__ = ["fanout", "ledger_url", "private_redis"]

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What our own output on a terminal has; a hostile text has lost its escapes."""
OF_THE_LIVE_VIEW = re.compile(r"\x1b\[(\?25[lh]|[0-9]*[AKJ])")
"""Cursor movement with which a live view draws itself again."""


@dataclass(frozen=True)
class Jobs:
    running: str
    ended: str
    waiting: str

    def commands(self, folder: Path) -> list[list[str]]:
        looks = [
            [name, job, *options]
            for name, *options in (
                ("tree",), ("tree", "--summary"), ("show",), ("logs",), ("logs", "--json"),
            )
            for job in (self.running, self.ended)
        ]  # fmt: skip
        return [
            *looks,
            ["ps", "--all"],
            ["ps", "--all", "--json"],
            ["result", self.ended],
            ["result", self.ended, "--json"],
            ["wait", self.ended],
            ["watch", self.ended],
            ["history"],
            ["top", "--once"],
            ["top", "--json"],
            *(["cost", "--by", by] for by in ("agent", "model", "day", "label")),
            ["approvals"],
            ["approvals", "--json"],
            ["diff", self.ended, "--stat"],
            ["diff", self.ended, "--conflicts"],
            ["apply", self.ended, "--into", str(folder), "--check"],
            ["apply", self.ended, "--into", str(folder)],
            ["reject", self.waiting],
            ["tell", self.running, "\x1b[2J\u202e"],
            ["cancel", self.running],
        ]


async def hostile(fanout: Fanout, url: str) -> Jobs:
    folder = fanout.folder / "state"
    settings = await asyncio.to_thread(Settings, redis_url=url, state_dir=folder)
    agents = await asyncio.to_thread(load_agent_definitions, None)
    async with JobClient(url, settings, agents) as client, connect(url) as redis:
        blobs = await asyncio.to_thread(BlobStore, (folder / "blobs").as_uri())
        hands = Hands(client, redis, blobs)
        return Jobs(*await hostile_jobs(hands))


def in_pipe(fanout: Fanout, *arguments: str) -> str:
    ended = fanout(*arguments)
    assert ended.code in {0, 1}, ended.err
    return ended.out + ended.err


def on_terminal(fanout: Fanout, *arguments: str) -> str:
    """Run a command whose outputs are a terminal, and return what it has written there."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "wb", buffering=0) as terminal:
        child = ForkedProcess(
            "orchestrator", arguments, fanout.env | {"COLUMNS": "200"}, folder=fanout.folder,
            stdout=terminal, stderr=terminal,
        )  # fmt: skip
    written: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                written.append(piece)
        except OSError:  # the other side is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert child.wait(60) in {0, 1}, b"".join(written)
    reader.join(60)
    os.close(ours)
    text = b"".join(written).decode().replace("\r\n", "\n").replace("\r", "")
    return OF_THE_LIVE_VIEW.sub("", COLOURS.sub("", text))


@pytest.mark.parametrize("printed_by", [in_pipe, on_terminal])
async def test_no_command_prints_a_character_that_is_hidden_or_obeyed(
    fanout: Fanout, ledger_url: str, tmp_path: Path, printed_by: Callable[..., str]
) -> None:
    jobs = await hostile(fanout, ledger_url)
    folder = tmp_path / "folder"
    await asyncio.to_thread(folder.mkdir)
    commands = jobs.commands(folder)

    for command in commands:
        shown = await asyncio.to_thread(printed_by, fanout, *command)
        assert shown.strip(), command
        assert [line for line in shown.split("\n") if printable(line) != line] == [], command

    assert {*SECTIONS["Look"], *SECTIONS["Land"], "approvals"} <= {name for name, *_ in commands}
