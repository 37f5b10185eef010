"""A server, and jobs that are made without workers."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from redis.asyncio import Redis

from fanout.orchestrator.approvals import DECISIONS
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinitions,
    load_agent_definitions,
)
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.jobs.approvals import Approval, approval_id
from fanout.orchestrator.jobs.changes import ChangedFile, Changes, FileVersion
from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_result, make_spec, make_worker
from tests.forked import REPOSITORY

WAIT_SECONDS = 60.0
Answer = TypeVar("Answer")


class Hands:
    """Plays clients and workers on a Redis."""

    def __init__(self, client: JobClient, redis: Redis, blobs: BlobStore) -> None:
        self.client = client
        self.redis = redis
        self.ledger = Ledger(redis, Keys())
        self.journal = Journal(redis, Keys())
        self.blobs = blobs

    async def submit(self, description: str, **fields: Any) -> str:
        [job_id] = await self.client.submit_many([(make_spec(description, **fields), None)])
        return job_id

    async def claim(self, *job_ids: str) -> list[Claim]:
        """Let a worker claim jobs."""
        worker = make_worker(concurrency=2000)
        await self.ledger.register(worker, 600)
        await self.ledger.dispatch(2000)
        claims = []
        for job_id in job_ids:
            claim = await self.ledger.claim(job_id, worker, 600)
            assert isinstance(claim, Claim), claim
            claims.append(claim)
        return claims

    async def start(self, claim: Claim, **fields: Any) -> Claim:
        """Let a job delegate, and claim its child."""
        parent = claim.spec
        child = make_spec(
            root_id=parent.root_id, parent_id=parent.id, depth=parent.depth + 1, **fields
        )
        bounds = TreeBounds()
        assert await self.ledger.start(parent.id, claim.token, child, bounds)
        [claimed] = await self.claim(child.id)
        return claimed

    async def note(
        self, job_id: str, kind: EventType, line: str | None = None, **data: Any
    ) -> None:
        used = data.pop("used", None)
        await self.journal.append(job_id, 1, kind, data, line, used=used)

    async def ask(self, claim: Claim, tool: str, **arguments: Any) -> Approval:
        """Let a job wait for a person."""
        approval = Approval(
            id=approval_id(claim.spec.id, tool),
            job_id=claim.spec.id,
            agent=claim.spec.agent,
            call_id="call-1",
            tool=tool,
            arguments=arguments,
            decisions=DECISIONS,
            sha256="0" * 64,
        )
        await self.ledger.park(claim.spec.id, claim.token, [approval])
        return approval

    async def finish(self, claim: Claim, changes: bytes | None = None, **fields: Any) -> None:
        job_id = claim.spec.id
        if changes is not None:
            fields["changes"] = await self.blobs.put(changes)
        result = make_result(job_id, **fields)
        assert await self.ledger.finish(job_id, claim.token, result, {})


class PageServer:
    """`fanout serve` as a process on a free port, and hands in a thread of this one.

    Args:
        redis_url: Its Redis.
        folder: For its state.
        environment: Further settings.
    """

    def __init__(self, redis_url: str, folder: Path, **environment: str) -> None:
        self._redis_url = redis_url
        self._folder = folder
        state = {"FANOUT_REDIS_URL": redis_url, "FANOUT_STATE_DIR": str(folder / "state")}
        path = {"PYTHONPATH": str(REPOSITORY)}
        self._environment = {**os.environ, **path, **state, **environment}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._opened = AsyncExitStack()
        self.hands: Hands
        self.url = ""
        self.login_link = ""
        """It works once."""

    def __enter__(self) -> Self:
        state = self._folder / "state"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fanout", "serve", "--port", "0"],
            env=self._environment,
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._thread.start()
        settings = load_settings(redis_url=self._redis_url, state_dir=state)
        self.hands = self.call(self._open(settings, load_agent_definitions()))
        self.url = self._said("serves at ")
        self.login_link = self._said("ten minutes: ")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self.call(self._opened.aclose())
        self._process.communicate(timeout=WAIT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run something in the hands' loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def fanout(self, *arguments: str) -> Any:
        """Run a command and return the JSON that it prints."""
        command = [sys.executable, "-m", "fanout", *arguments]
        done = subprocess.run(
            command, env=self._environment, cwd=REPOSITORY, check=True, capture_output=True
        )
        return json.loads(done.stdout)

    def _said(self, what: str) -> str:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if what in line:
                return line.partition(what)[2].strip()
        raise AssertionError("".join(said))

    async def _open(self, settings: Settings, definitions: AgentDefinitions) -> Hands:
        client = JobClient(self._redis_url, settings, definitions)
        await self._opened.enter_async_context(client)
        redis = await self._opened.enter_async_context(connect(self._redis_url))
        return Hands(client, redis, await asyncio.to_thread(BlobStore, settings.blobs))


def bundle(patch: str, *files: dict[str, Any], **objects: bytes) -> bytes:
    """A change bundle with a patch as Git writes it; sides of files only where they are given."""
    stored = {hashlib.sha256(content).hexdigest(): content for content in objects.values()}
    version = {
        name: FileVersion(
            kind="file",
            mode=0o644,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
        )
        for name, content in objects.items()
    }
    changes = Changes(
        files=tuple(
            ChangedFile.model_validate(
                {
                    **one,
                    **{
                        side: version[one[side]]
                        for side in ("before", "after")
                        if one.get(side) is not None
                    },
                }
            )
            for one in files
        )
    )
    out = io.BytesIO()
    members = {"changes.json": changes.model_dump_json().encode(), "patch": patch.encode()}
    members |= {f"objects/{sha256}": content for sha256, content in stored.items()}
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
