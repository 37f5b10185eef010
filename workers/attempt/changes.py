"""Collects a job's change bundle and stores it, within the time that the job has for it.

Commits of the agent that the changes do not carry, on other branches, on none or stashed, are named
in the job's summary.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import IO

from fanout.orchestrator.jobs.changes import ChangeBundle, FileChange
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.result import (
    MAX_SUMMARY_CHARACTERS,
    CollectedChanges,
    first_files,
)
from fanout.orchestrator.workspace.blobs import BlobStore

from ..heartbeat import elapsed_clock
from ..sandbox import Command, Sandbox, SandboxDied
from .attempt import Attempt

CHANGES_SECONDS = 60.0
"""The time limit for collecting the changes of a job that was not stopped."""
HURRIED_CHANGES_SECONDS = 1.0
"""The time limit, from when it was stopped, for collecting the changes of a cancelled or late job:
with the end of its processes, the job ends within two seconds. What takes longer is collected after
its end."""
HURRIED_AT_ONCE = 2 * (os.cpu_count() or 1)
"""Collections of stopped jobs at once: each takes a processor, so more would all be late."""
MAX_COMMITS = 100
"""That are asked for: a job makes some ten."""
MAX_MOVES = 1000
"""The movements of HEAD that are looked at, the last ones first."""
MAX_BRANCHES = 10
"""That are named: more would hide the summary."""
MAX_NAME_CHARACTERS = 100
"""The longest name of a branch, and the longest subject of a commit."""
LOOK_SECONDS = 20.0
"""The time for Git in a large repository; a usual one takes milliseconds."""

_LEFT = re.compile(r"(?:^|\0)checkout: moving from ([0-9a-f]{40}|[0-9a-f]{64}) to ")
"""What Git notes when a commit is left that was checked out without a branch."""


class ChangeCollections:
    """Collects the changes of a worker's jobs.

    Args:
        blobs: Where the change bundles are stored.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.slots = asyncio.Semaphore(HURRIED_AT_ONCE)
        """Taken by the collections of jobs that were stopped: many may be stopped at once."""

    async def of_attempt(self, attempt: Attempt, sandbox: Sandbox) -> CollectedChanges:
        """Collect the changes of an attempt that ends its job.

        Args:
            attempt: The attempt; one that was stopped has less time.
            sandbox: Its sandbox.

        Raises:
            SandboxDied: It takes too long. An engine that hangs may answer the next attempt.
            SandboxFailure: The sandbox or the collection failed.
        """
        slot: AbstractAsyncContextManager[object] = nullcontext()
        seconds = CHANGES_SECONDS
        if attempt.stopped_at is not None:
            slot = self.slots
            seconds = max(attempt.stopped_at + HURRIED_CHANGES_SECONDS - elapsed_clock(), 0)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(0)  # nothing begins when the time is over
                async with slot:
                    return await self.store(sandbox.changes())
        except TimeoutError:
            raise SandboxDied(
                f"The job's changes could not be collected within {seconds:.1f} s."
            ) from None

    async def store(self, collecting: Awaitable[IO[bytes]]) -> CollectedChanges:
        """Store a change bundle as a blob, and return what it lists.

        Args:
            collecting: Returns the bundle.

        Raises:
            JobFailure: The bundle cannot be collected, or the blob not be stored.
        """
        with await collecting as bundle:
            files = await asyncio.to_thread(_files, bundle)
            if not files:
                return CollectedChanges()
            bundle.seek(0)
            blob = await self._blobs.put_file(bundle)
        listed, omitted = first_files(files)
        return CollectedChanges(files_modified=listed, files_omitted=omitted, changes=blob)


def _files(bundle: IO[bytes]) -> tuple[FileChange, ...]:
    with ChangeBundle.open(bundle) as opened_bundle:
        return opened_bundle.changes.summary()


async def with_stray_commits(summary: str, sandbox: Sandbox, since: float) -> str:
    """Return a summary with a sentence about the commits that do not come back, if there are any.

    Args:
        summary: The agent's.
        sandbox: The job's sandbox, whose own Git is asked: its answer is as little believed as the
            summary is.
        since: When the job was submitted, in seconds since the epoch.
    """
    sentence = ""
    with suppress(SandboxFailure, OSError):  # it fails again where it matters
        sentence = await _sentence(sandbox, since)
    if not sentence:
        return summary
    room = MAX_SUMMARY_CHARACTERS - len(sentence) - 2
    return "\n\n".join(filter(None, (summary[:room], sentence)))


async def _sentence(sandbox: Sandbox, since: float) -> str:
    git = ("git", "-c", "core.fsmonitor=false")
    look = partial(Command, timeout_seconds=LOOK_SECONDS, merge_stderr=False)
    moves = await sandbox.run(
        look(argv=(*git, "log", "-z", "--walk-reflogs", "--format=%gs", f"--max-count={MAX_MOVES}"))
    )
    left = dict.fromkeys(_LEFT.findall(moves.output.decode("utf-8", "replace")))
    listing = (
        *(*git, "log", "-z", "--ignore-missing", "--all", *left, "--not", "HEAD", "--source"),
        *("--no-show-signature", f"--since=@{int(since)}", f"--max-count={MAX_COMMITS}"),
        "--format=%S%x09%h %s",
    )
    command = look(argv=listing)
    listed = await sandbox.run(command)
    if listed.exit_code:
        return ""
    by_branch: defaultdict[str, list[str]] = defaultdict(list)
    for line in filter(None, listed.output.decode("utf-8", "replace").split("\0")):
        reference, _, commit = line.partition("\t")
        name = reference.removeprefix("refs/").removeprefix("heads/")
        by_branch["a detached HEAD" if name in left else _shown(name)].append(commit)
    named = [
        f"{branch} ({len(commits)}, the last one is {_shown(commits[0])})"
        for branch, commits in list(by_branch.items())[:MAX_BRANCHES]
    ]
    if not named:
        return ""
    more = f" and {len(by_branch) - MAX_BRANCHES} more" if len(by_branch) > MAX_BRANCHES else ""
    return (
        f"Commits outside of what was checked out at the end did not come back: {', '.join(named)}"
        f"{more}. A job brings back the files of its workspace: have it merge or check out what "
        "you want."
    )


def _shown(text: str) -> str:
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean[:MAX_NAME_CHARACTERS]
