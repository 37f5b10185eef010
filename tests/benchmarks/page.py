"""How soon a change is on the screen of the page while hundreds of jobs change."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from fanout.orchestrator.jobs.store.journal import EventType
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.page.browser import browser
from tests.integration.page.served_page import Hands, PageServer
from tests.services import installation

JOBS = 500
ROUNDS = 20
"""In each, every job changes once within a second."""
FRAMES = 200
STAMP = """
window.arrived = new Map();
window.samples = [];
const add = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, listener) {
  return add.call(this, name, (event) => {
    const found = name === "job" && /"last_event":"at (\\d+)/.exec(event.data);
    if (found) window.arrived.set(found[1], [performance.now(), Date.now()]);
    listener(event);
  });
};
const painted = (then) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => then(performance.now());
  channel.port2.postMessage(0);
});
window.painted = painted;
new MutationObserver((changes) => {
  for (const change of changes) {
    const stamp = /^at (\\d+)/.exec(change.target.textContent)?.[1];
    const arrived = stamp && window.arrived.get(stamp);
    if (!arrived) continue;
    window.arrived.delete(stamp);
    const whole = arrived[1] - Number(stamp) / 1000;
    painted((now) => window.samples.push([now - arrived[0], whole]));
  }
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
"""The time from the arrival of an event in the browser to the frame that shows it."""
FRAME = """async () => {
  const samples = [];
  for (let number = 0; number < FRAMES; number += 1) {
    const began = performance.now();
    samples.push(await new Promise((resolve) => painted((now) => resolve(now - began))));
  }
  return samples;
}""".replace("FRAMES", str(FRAMES))

SHOWN = Benchmark(
    name="page-shown",
    title=f"a change on the page's screen after its event, {JOBS} live jobs",
    unit="ms",
    floor="a frame without any change",
    target_p95=100,
)
WHOLE = Benchmark(
    name="page-whole",
    title=f"a worker's note on the page's screen, {JOBS} live jobs",
    unit="ms",
    floor="until its event is in the browser",
)


async def run(_wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Let many jobs change, and watch the list of runs."""
    shown, arrived, frames = await asyncio.to_thread(_measure)
    yield SHOWN, Samples(shown, frames)
    whole = [one + other for one, other in zip(shown, arrived, strict=True)]
    yield WHOLE, Samples(whole, arrived)


def _measure() -> tuple[list[float], list[float], list[float]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        installation(Path(name)) as place,
        PageServer(place, forked=False) as server,
        browser() as opened,
    ):
        ids = server.call(_live_jobs(server.hands))
        context = opened.new_context(viewport={"width": 1280, "height": 1000})
        context.add_init_script(STAMP)
        page = context.new_page()
        page.goto(server.login_link())
        page.wait_for_selector(".job-row .title")
        frames = page.evaluate(FRAME)
        samples = _changes(server, page, ids)
    return [one for one, _ in samples], [other for _, other in samples], frames


def _changes(server: PageServer, page: Page, ids: list[str]) -> list[Any]:
    for number in range(ROUNDS):
        server.call(_change(server.hands, ids))
        if not number:
            page.evaluate("samples.length = 0")  # the first ones compile the page's code
    page.wait_for_timeout(500)
    samples: list[Any] = page.evaluate("samples")
    assert len(samples) > ROUNDS, "too few changes were seen"
    return samples


async def _live_jobs(hands: Hands) -> list[str]:
    ids = [await hands.submit(f"Look at part {number}") for number in range(JOBS)]
    await hands.claim(*ids)
    return ids


async def _change(hands: Hands, ids: list[str]) -> None:
    """Let each job write a line into its journal, evenly over a second."""
    began = time.monotonic()
    for number, job_id in enumerate(ids):
        await asyncio.sleep(max(0, began + number / len(ids) - time.monotonic()))
        line = f"at {time.time_ns() // 1000}"
        await hands.note(job_id, EventType.LOG, line, text=line)


SECTION = Section(benchmarks=(SHOWN, WHOLE), run=run)
