"""What workers have otherwise than the person who asks: agent definitions, and names of keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from fanout.orchestrator.jobs.worker_info import WorkerInfo

OWN_DEFINITIONS = "It reads them again within seconds; if this stays: fanout down, then run again."
OTHERS_DEFINITIONS = (
    "Give it the same files in FANOUT_AGENTS_DIR; it reads them again within seconds."
)
OWN_KEYS = "To start it with them: fanout down, then fanout up or fanout run."
OTHERS_KEYS = (
    "If its jobs need them, restart it with them, or put them into the .env next to its "
    "configuration file: it reads that file again without a restart."
)


def worker_differences(
    workers: Sequence[WorkerInfo],
    definitions: Mapping[str, str],
    keys: Collection[str],
    *,
    is_own: bool,
) -> Iterator[tuple[str, str]]:
    """Yield what each worker has otherwise, with what to do about it.

    Args:
        workers: Those that are alive; what one of an older release has is not known.
        definitions: The fingerprints of the person's definitions by name.
        keys: The names of the person's variables with keys and secrets.
        is_own: Whether this person's commands start and stop the worker.
    """
    for worker in workers:
        if not worker.definitions:
            continue
        theirs = worker.definitions.items()
        changed = sorted(
            name for name, digest in definitions.items() if (name, digest) not in theirs
        )
        if changed:
            found = f"{worker.name} has no or other definitions of {', '.join(changed)}"
            yield found, OWN_DEFINITIONS if is_own else OTHERS_DEFINITIONS
        if missing := sorted(set(keys) - set(worker.keys)):
            found = f"{worker.name} does not have {', '.join(missing)}, which you have"
            yield found, OWN_KEYS if is_own else OTHERS_KEYS
