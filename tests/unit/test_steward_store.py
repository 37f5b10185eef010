"""The steward's lists of jobs, which may be longer than a reply."""

from __future__ import annotations

from pathlib import Path

from fanout.workers.sandbox.inside.steward import LISTED_JOBS, Store


def test_all_jobs_are_listed_page_by_page(tmp_path: Path) -> None:
    names = sorted(f"job-{number:04}" for number in range(2 * LISTED_JOBS + 1))
    for name in names:
        (tmp_path / "jobs" / name).mkdir(parents=True)
    store = Store(tmp_path, 0, 0)

    listed: list[str] = []
    while page := store.jobs(after=listed[-1] if listed else ""):
        assert len(page) <= LISTED_JOBS
        listed += page

    assert listed == names
