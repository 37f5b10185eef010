"""Real workers on a Redis of their own, with local sandboxes."""

from __future__ import annotations

from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell

CANARY = "canary-4711"
"""Stands in a description, in what the agent does and in what it says: it must not be seen
outside."""

SCRIPT = (
    conversation("long", shell("sleep 60"), DONE),
    conversation("endless", *(shell("sleep 100") for _ in range(20)), DONE),
    conversation("medium", shell("sleep 2"), DONE),
    conversation("turns", *(shell("sleep 1.2") for _ in range(4)), DONE),
    conversation(
        CANARY,
        shell(f"echo {CANARY} > {CANARY}.txt; sleep 1.2"),
        shell(f"echo {CANARY}; sleep 1.2"),
        {"text": f"Done with {CANARY}.\n\n## Summary\n{CANARY} is written."},
    ),
    conversation("quick", shell("true"), DONE),
)


place = place_fixture(*SCRIPT)
