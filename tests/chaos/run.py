"""One run: break things while jobs run, let them end, look at what is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import time
from pathlib import Path

from tests.chaos import evidence, file_proof, outages, proofs
from tests.chaos.injector import Injector
from tests.chaos.installation import CONCURRENCY, WORKERS, Installation
from tests.chaos.plan import FAULT_KINDS, planned_faults, planned_jobs
from tests.chaos.recoveries import recoveries
from tests.chaos.report import Report
from tests.chaos.workload import Workload

WINDOW = (WORKERS - 1) * CONCURRENCY + 2
"""Jobs under way: with one worker gone nearly nothing queues, so a recovery is no wait for a
place."""
FIRST_SUCCESS_SECONDS = 60.0
"""Faults begin with the first job's success, or so long after the first submission."""
END_SECONDS = 300.0
"""For what is under way when all faults are healed; jobs take seconds."""
GONE_SECONDS = 90.0
"""The promise is 30 s after a job's end, and a sandbox that was started ahead stays a minute; the
rest is for a busy machine."""
GONE_LOOK_SECONDS = 5.0
PROGRESS_SECONDS = 15.0


async def run(folder: Path, seed: int, minutes: float, keep: Path) -> Report:
    """Run a seed's plan; what came of it."""
    began = time.monotonic()
    _say(f"seed {seed}: starting Redis, an engine and {WORKERS} workers")
    async with Installation(folder, minutes) as place, place.client() as client:
        faults = planned_faults(seed, minutes * 60, docker=place.engine is not None)
        injector = Injector(place, faults)
        work = Workload(client, planned_jobs(seed), WINDOW, place.workspace)
        await _break(work, injector, minutes * 60)
        _say("looking at what is left")
        jobs = await evidence.of_jobs(client, work.submitted)
        processes = [{life.name for life in worker.lives} for worker in place.workers]
        met = (jobs, injector.injected, processes)
        found = {
            "every acknowledged job ended": proofs.all_ended(jobs, work.submitted),
            "no two attempts at once": proofs.never_two_at_once(jobs),
            "each result committed once": proofs.committed_once(jobs),
            "files are what the journal says": file_proof.files_as_told(jobs),
            "an outage uses up no attempt": outages.cost_no_attempt(*met),
            "no job freezes while Redis is full": outages.frozen_while_full(*met),
            "nothing left": await _gone(place),
            "workers end when told to": await _ended(place),
            "nothing left when the workers have gone": proofs.nothing_left(
                await evidence.leftovers(place), workers_live=False
            ),
        }
        report = Report(
            seed=seed,
            minutes=minutes,
            seconds=time.monotonic() - began,
            jobs=jobs,
            faults=injector.injected,
            skipped=injector.skipped,
            left_out=place.left_out,
            violations=found,
            recoveries=recoveries(injector.injected, jobs),
            met_alone={
                fault.kind: len(outages.met_alone(fault, *met))
                for fault in reversed(injector.injected)
                if FAULT_KINDS[fault.kind].first_alone
            },
        )
        _keep(keep, place, report)
    return report


async def _break(work: Workload, injector: Injector, seconds: float) -> None:
    """Submit and break for so long, then wait for the ends."""
    helpers = [
        asyncio.create_task(work.answer_approvals()),
        asyncio.create_task(_progress(work, injector)),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(work.run(seconds))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SUCCESS_SECONDS):
                    await work.first_success.wait()
            group.create_task(injector.run())
        _say("all faults are healed; waiting for the last jobs")
        left = await work.ended(END_SECONDS)
        _say(f"{len(work.submitted)} jobs acknowledged, {left} not ended")
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


async def _gone(place: Installation) -> list[str]:
    """What is left when it has had its time to go."""
    until = time.monotonic() + GONE_SECONDS
    while True:
        found = proofs.nothing_left(await evidence.leftovers(place), workers_live=True)
        if not found:
            return []
        if time.monotonic() > until:
            return found + (
                await asyncio.to_thread(place.engine.refusals, place.identity)
                if place.engine
                else []
            )
        _say(f"still there: {'; '.join(found)}")
        await asyncio.sleep(GONE_LOOK_SECONDS)


async def _ended(place: Installation) -> list[str]:
    await place.ready()  # one that is starting has no jobs yet, and ends as the signal says
    codes = await place.end_workers()
    return [f"worker {number} ended with {code}" for number, code in enumerate(codes) if code != 0]


async def _progress(work: Workload, injector: Injector) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        ended = sum(job.result is not None for job in work.submitted.values())
        _say(f"{ended} of {len(work.submitted)} jobs ended, {len(injector.injected)} faults")


def _keep(folder: Path, place: Installation, report: Report) -> None:
    """Save what tells how a violation came about."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in (*place.folder.glob("worker-*.log"), *place.folder.glob("engine/dockerd.log")):
        shutil.copy(log, folder)
    (folder / "faults.json").write_text(
        json.dumps([vars(fault) | {"hit": vars(fault.hit)} for fault in report.faults], indent=1)
    )
    lives = [
        vars(life) | {"worker": n}
        for n, worker in enumerate(place.workers)
        for life in worker.lives
    ]
    (folder / "workers.json").write_text(json.dumps(lives, indent=1))
    told = " ".join(word for words in report.violations.values() for word in words)
    for job in report.jobs.values():
        if job.id in told:
            lines = [event.model_dump_json() for event in job.events]
            (folder / f"{job.id}.jsonl").write_text("\n".join([*lines, json.dumps(job.files)]))


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
