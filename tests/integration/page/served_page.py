"""A server, and jobs that are made without workers."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

from redis.asyncio import Redis

from fanout.orchestrator.approvals import DECISIONS
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.client.state_folder import EmbeddedRecord, StateFolder
from fanout.orchestrator.jobs.approvals import Approval, approval_id
from fanout.orchestrator.jobs.changes import ChangedFile, Changes, FileVersion
from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_result, make_spec, make_worker
from tests.served import ServerProcess
from tests.services import Installation
from tests.waits import eventually_in_thread

WAIT_SECONDS = 60.0
_LINK = re.compile(r"http\S+/login\?token=\S+")
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

    async def retime(self, job_id: str, timeline: str, **times: float) -> None:
        """Let a record say when its job was submitted, what it did, and when it ended.

        Args:
            job_id: The job.
            timeline: The beginnings of its phases as `name:seconds`, and `verify:end:length:code`;
                in seconds after `times`' `begin`.
            times: `begin`, in seconds since the epoch; `submitted`, `started` and `finished` after
                it.
        """
        begin = times.pop("begin")

        def milliseconds(seconds: float) -> int:
            return round(1000 * (begin + seconds))

        entries = []
        for entry in timeline.split():
            name, at, *values = entry.split(":")
            lengths = [round(1000 * float(values[0])), *values[1:]] if values else []
            entries.append(":".join(map(str, [name, milliseconds(float(at)), *lengths])))
        fields: dict[str, Any] = {f"{name}_at": milliseconds(at) for name, at in times.items()}
        fields["timeline"] = " ".join(entries)
        await self.redis.hset(Keys().job(job_id), mapping=fields)

    async def finish(self, claim: Claim, changes: bytes | None = None, **fields: Any) -> None:
        job_id = claim.spec.id
        if changes is not None:
            fields["changes"] = await self.blobs.put(changes)
        result = make_result(job_id, **fields)
        assert await self.ledger.finish(job_id, claim.token, result, {})


class PageServer:
    """A server as a process, and hands in a thread of this one.

    Args:
        place: Its Redis and its state.
        forked: Whether it starts without the seconds of its imports.
        settings: Further settings.
    """

    def __init__(self, place: Installation, *, forked: bool = True, **settings: str) -> None:
        self.place = place
        self._server = ServerProcess(place, forked=forked, settings=settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._opened = AsyncExitStack()
        self.hands: Hands
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._server.start()
        self.hands = self.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self.call(self._opened.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run something in the hands' loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def tail(self) -> str:
        """The end of its output."""
        return self._server.tail()

    def login_link(self) -> str:
        """The link that the server has printed; it works once."""
        found = eventually_in_thread(
            lambda: _LINK.search(self._server.log.read_text(errors="replace"))
        )
        return str(found[0])

    async def _open(self) -> Hands:
        client = await self._opened.enter_async_context(self.place.client())
        redis = await self._opened.enter_async_context(connect(self.place.redis.url))
        blobs = await asyncio.to_thread(BlobStore, self.place.settings.blobs)
        return Hands(client, redis, blobs)


def make_embedded(place: Installation) -> None:
    """Let an installation be that of one person on this machine, as `fanout up` makes it."""
    folder = StateFolder(place.folder / "state")
    folder.prepare()
    addresses = {"redis_url": place.redis.url, "blobs_url": place.settings.blobs}
    folder.write_record(EmbeddedRecord(**addresses, redis_pid=None, worker_pid=None, kept=True))


def bundle(*files: dict[str, Any]) -> bytes:
    """A change bundle; `before` and `after` of a file are its contents, where it has them."""
    stored: dict[str, bytes] = {}

    def version(content: bytes) -> FileVersion:
        sha256 = hashlib.sha256(content).hexdigest()
        stored[sha256] = content
        return FileVersion(kind="file", mode=0o644, sha256=sha256, size_bytes=len(content))

    listed = [
        one | {side: version(one[side]) for side in ("before", "after") if side in one}
        for one in files
    ]
    changes = Changes(files=tuple(map(ChangedFile.model_validate, listed)))
    members = {"changes.json": changes.model_dump_json().encode()}
    members |= {f"objects/{sha256}": content for sha256, content in stored.items()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
