"""What a worker's CPU pays to set up an agent whose definition it has seen before."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from google.adk.apps import App
from google.adk.runners import InMemoryRunner

from fanout.orchestrator.configuration.agent_definitions import (
    GENERAL_PURPOSE,
    load_agent_definitions,
)
from fanout.orchestrator.deep_agent import Budget, create_deep_app, preload_client
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.delegation.agents import create_agent
from tests.benchmarks.agents import plain_app
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.benchmarks.waiting_agents import waiting_script

AGENTS, ROUNDS = 50, 20

SETUP = Benchmark(
    name="agent-setup",
    title="CPU to set up an agent, definition seen before",
    unit="ms",
    floor="ADK's agent with as many tools",
    target=5,
)


async def run(_wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Make agents of one definition, each with its app and its runner, and ADK's own in turn."""
    definition = load_agent_definitions()[GENERAL_PURPOSE]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        model = f"scripted:{waiting_script(folder)}"
        await preload_client(model)

        def deep() -> App:
            agent = create_agent(
                *(definition, model, []),
                added_instruction="",
                files_folder="/workspace",
                backend=DirectoryBackend(folder, mount="/workspace"),
                is_subagent=True,
            )
            return create_deep_app(agent, budget=Budget())

        def plain() -> App:
            return plain_app(1, folder)

        _cpu_ms(deep), _cpu_ms(plain)
        pairs = [(_cpu_ms(deep), _cpu_ms(plain)) for _ in range(ROUNDS)]
    yield SETUP, Samples([ours for ours, _ in pairs], [floor for _, floor in pairs])


def _cpu_ms(make: Callable[[], App]) -> float:
    began = time.process_time()
    for _ in range(AGENTS):
        InMemoryRunner(app=make())
    return (time.process_time() - began) * 1000 / AGENTS


SECTION = Section(benchmarks=(SETUP,), run=run)
