"""The program of `fanout environment`: the prepared environments of this host's engine.

`python -P -m fanout.workers.extras.environments ls [--json] | rm KEY… | rm --all |
build --agent NAME [--snapshot ID] [--layer ID …]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.log_setup import set_up_logging
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.shortening import count
from fanout.orchestrator.workspace.blobs import BlobStore

from ..agent.services import JobServices
from ..attempt.environments import JobEnvironments
from ..bootstrap import docker_provider
from ..sandbox import COMMAND, DockerProvider, EnvironmentRecord
from ..startup import load_worker_settings
from ..upkeep.own_ledger import OwnLedger

EXIT_FAILED = 1
SHORT_KEY = 12
"""The shown part of a key; `rm` takes any beginning of this length or more."""
MIB = 1024**2


@dataclass(frozen=True)
class _Host:
    """What the commands need."""

    settings: Settings
    ledger: Ledger
    journal: Journal
    blobs: BlobStore
    provider: DockerProvider


@asynccontextmanager
async def _opened() -> AsyncIterator[_Host]:
    """Open the engine as a worker of these settings does."""
    settings, redis_url = load_worker_settings()
    set_up_logging("warning")
    keys = Keys(settings.redis_prefix)
    async with connect(redis_url) as redis:
        ledger = Ledger(redis, keys)
        blobs = BlobStore(settings.blobs, timeout_seconds=settings.blobs_timeout_seconds)
        own = await OwnLedger.of(ledger)
        name = f"{COMMAND}{os.getpid()}"
        provider = docker_provider(settings, blobs.fetch, own, name, warm=0)
        try:
            yield _Host(settings, ledger, Journal(redis, keys), blobs, provider)
        finally:
            await provider.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    arguments = _parser().parse_args(argv)
    actions = {"ls": _ls, "rm": _rm, "build": _build}
    try:
        return asyncio.run(actions[arguments.action](arguments))
    except JobFailure as failure:
        _notice(str(failure))
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    """Return the parser of what `fanout environment` passes on; that one explains it."""
    parser = argparse.ArgumentParser(prog="fanout environment")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("ls").add_argument("--json", action="store_true")
    removal = actions.add_parser("rm")
    removal.add_argument("keys", nargs="*", metavar="KEY")
    removal.add_argument("--all", action="store_true")
    building = actions.add_parser("build")
    building.add_argument("--agent", required=True)
    building.add_argument("--snapshot")
    building.add_argument("--layer", action="append", default=[])
    return parser


async def _ls(arguments: argparse.Namespace) -> int:
    async with _opened() as host:
        found = await host.provider.environments.list()
    if arguments.json:
        _say(json.dumps({"environments": [_document(each) for each in found]}))
        return 0
    for each in found:
        _say(_line(each))
    if not found:
        _notice("No environment is prepared on this host.")
    return 0


def _document(found: EnvironmentRecord) -> dict[str, object]:
    return {
        "key": found.key,
        "bytes": found.bytes,
        "made_at": found.made_at,
        "used_at": found.used_at,
        "in_use": found.in_use,
        **found.record,
    }


def _line(found: EnvironmentRecord) -> str:
    hours = max(0, int(time.time()) - found.used_at) // 3600
    used = "in use" if found.in_use else f"used {hours} h ago"
    record = found.record
    return (
        f"{found.key[:SHORT_KEY]}  {found.bytes // MIB:>6} MiB  {used:<14}  "
        f"{record.get('agent', '')}  {record.get('repository', '')}"
    )


async def _rm(arguments: argparse.Namespace) -> int:
    async with _opened() as host:
        found = await host.provider.environments.list()
        keys = {
            each.key
            for each in found
            if arguments.all or any(each.key.startswith(key) for key in arguments.keys)
        }
        unknown = [key for key in arguments.keys if not any(one.startswith(key) for one in keys)]
        removed = await host.provider.environments.remove(sorted(keys))
    _notice(f"Removed: {count(len(removed), 'environment')}.")
    if left := keys.difference(removed):
        _notice(f"In use by jobs, and kept: {', '.join(key[:SHORT_KEY] for key in sorted(left))}")
    if unknown:
        _notice(f"Not on this host: {', '.join(unknown)}. To list them: fanout environment ls")
    return EXIT_FAILED if left or unknown else 0


async def _build(arguments: argparse.Namespace) -> int:
    async with _opened() as host:
        settings = host.settings
        services = JobServices(
            ledger=host.ledger,
            journal=host.journal,
            blobs=host.blobs,
            definitions=load_agent_definitions(settings.agents_dir),
            defaults=settings.limits.for_jobs(),
            bounds=settings.limits.tree_bounds(),
            secrets=settings.secrets,
            ceilings=settings.ceilings,
        )
        environments = JobEnvironments(services, host.provider, settings.sandbox.image)
        request = await environments.request(
            JobSpec(
                agent=arguments.agent,
                description="fanout environment build",
                snapshot=arguments.snapshot,
                layers=tuple(arguments.layer),
            )
        )
        if request is None:
            _notice(f"Neither the agent {arguments.agent} nor the workspace has a set-up.")
            return 0
        is_new = await host.provider.environments.ensure(request)
    _notice("Prepared." if is_new else "It was prepared before.")
    _say(request.key)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the payload


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress goes to the error output


if __name__ == "__main__":
    sys.exit(main())
