"""Commits that a job leaves outside of what is checked out. They do not come back: they are named.

A job's changes are the files of its workspace. What it has committed on another branch, or has
stashed, is not in them.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS
from fanout.workers.sandbox import Command, Sandbox

MAX_COMMITS = 100
"""That are asked for: a job makes some ten."""
MAX_BRANCHES = 10
"""That are named: more would hide the summary."""
MAX_NAME_CHARACTERS = 100
"""Of a branch's name or a commit's subject."""

LOOK_SECONDS = 20.0
"""For Git in a large repository; a usual one takes milliseconds."""


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
    listing = (
        *("git", "-c", "core.fsmonitor=false", "log", "-z", "--all", "--not", "HEAD", "--source"),
        *("--no-show-signature", f"--since=@{int(since)}", f"--max-count={MAX_COMMITS}"),
        "--format=%S%x09%h %s",
    )
    command = Command(argv=listing, timeout_seconds=LOOK_SECONDS, merge_stderr=False)
    listed = await sandbox.run(command)
    if listed.exit_code:
        return ""
    by_branch: defaultdict[str, list[str]] = defaultdict(list)
    for line in filter(None, listed.output.decode("utf-8", "replace").split("\0")):
        reference, _, commit = line.partition("\t")
        by_branch[_shown(reference.removeprefix("refs/").removeprefix("heads/"))].append(commit)
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
