"""Both sides of what could not be landed, as `fanout diff ID --conflicts` prints them."""

from __future__ import annotations

from fanout.orchestrator.landing.conflicts import KeptConflicts, ShownConflict, difference


def landing_conflicts(kept: KeptConflicts, job_id: str) -> list[ShownConflict]:
    """Return what of a job could not be landed on this machine."""
    place = kept.place(job_id)
    return [
        ShownConflict(
            job_id,
            file.path,
            file.reason,
            file.left_out or f"whole versions: {place}/{{base,yours,theirs}}/{file.path}",
            difference(file.yours, file.theirs, "yours", "theirs"),
        )
        for file in kept.read(job_id)
    ]
