"""The prepared environments of a Docker engine, each made once and used by many jobs.

A set-up runs in a sandbox of its own, whose files are kept as those of a sandbox that was started
ahead: what is left of one whose worker was killed is removed as theirs is. The steward holds the
claim on the environment's key, so that of all workers of the engine one prepares it; the claim
ends with the steward, and the steward with its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait, uninterrupted
from fanout.orchestrator.deep_agent import Execution
from fanout.orchestrator.jobs.failures import SandboxFailure, SetupCutOff, SetupFailed

from ..environment import EnvironmentRecord, EnvironmentRequest, SetupStep
from ..errors import DiskLimitExceeded, ImageMissing, SandboxStartFailed
from ..protocol import Command, ConnectionRecord, Sandbox, SandboxSpec, TrafficRecord
from .engine import Engine
from .steward_client import EnvironmentReady, Steward

BUSY_SECONDS = 0.5
"""Between two questions whether another worker has prepared an environment: the question takes a
millisecond, and a set-up seconds."""
SEAL_SECONDS = 600.0
"""What the start of its sandboxes and the sealing of an environment may take besides."""
IMAGE_SECONDS = 10.0
"""How long the content of an image of some name is taken to be the same: builds of images are
seldom, and the question takes as long as the start of a warm sandbox."""
READY_SECONDS = 10.0
"""How long an environment is taken to be there, since nearly none is removed and a warm sandbox is
adopted in the time of the question."""
MAX_READY = 1000
"""The environments that are remembered."""
MAX_BYTES = 16 * 1024**3
"""The largest archive of an environment, whatever the disk limit."""
OUTPUT_BYTES = 8_000
"""Of a command's output, head and tail: its end says what is wrong."""
QUOTED_CHARACTERS = 2_000
"""Of it in the failure, which is kept with the job."""
QUOTED_COMMAND = 200
"""Of the command."""
MAX_REFUSED = 5
"""The hosts that it names of those that were refused."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

log = structlog.get_logger(__name__)

OpenAhead = Callable[[SandboxSpec], AbstractAsyncContextManager[Sandbox]]
"""Opens a sandbox whose id is not a job's."""


@dataclass(eq=False)
class _Build:
    """A build in progress."""

    task: asyncio.Task[bool]
    waiting: int = 0


@dataclass(eq=False)
class DockerEnvironments:
    """The environments of one engine; see `Environments`."""

    engine: Engine
    steward: Callable[[], Awaitable[Steward]]
    open_ahead: OpenAhead
    _builds: dict[str, _Build] = field(default_factory=dict)
    _images: dict[str, tuple[float, str]] = field(default_factory=dict)
    _ready: dict[str, float] = field(default_factory=dict)
    """Since when environments are known to be there."""

    async def image_id(self, image: str) -> str:
        """See `Environments.image_id`."""
        now = asyncio.get_running_loop().time()
        looked_at, identity = self._images.get(image, (-IMAGE_SECONDS, ""))
        if now - looked_at >= IMAGE_SECONDS:
            found = await self.engine.image(image)
            if found is None:
                raise ImageMissing(f"The Docker engine has no image {image}.")
            identity = str(found["Id"])
            self._images[image] = now, identity
        return identity

    async def has(self, key: str) -> bool:
        """See `Environments.has`."""
        now = asyncio.get_running_loop().time()
        if now - self._ready.get(key, -READY_SECONDS) < READY_SECONDS:
            return True
        self._ready.pop(key, None)
        if not await (await self.steward()).has_environment(key):
            return False
        while len(self._ready) >= MAX_READY:
            del self._ready[next(iter(self._ready))]
        self._ready[key] = now
        return True

    def note_missing(self, key: str) -> None:
        """Note that an environment could not be mounted: the next question goes to the steward."""
        self._ready.pop(key, None)

    async def ensure(self, request: EnvironmentRequest) -> bool:
        """See `Environments.ensure`."""
        if await self.has(request.key):
            return False
        build = self._builds.get(request.key)
        if build is None:
            build = self._builds[request.key] = _Build(asyncio.create_task(self._built(request)))
            build.task.add_done_callback(lambda _: self._forget(request.key, build))
        build.waiting += 1
        try:
            return await asyncio.shield(build.task)
        finally:
            build.waiting -= 1
            if not build.waiting and not build.task.done():
                self._forget(request.key, build)
                await uninterrupted(cancel_and_wait(build.task))

    def _forget(self, key: str, build: _Build) -> None:
        if self._builds.get(key) is build:
            del self._builds[key]
        if build.task.done() and not build.task.cancelled():
            build.task.exception()  # retrieved: its last waiter may have been cancelled

    async def list(self) -> Sequence[EnvironmentRecord]:
        """See `Environments.list`."""
        found = await (await self.steward()).environments()
        return sorted(map(EnvironmentRecord.of, found), key=lambda each: -each.used_at)

    async def remove(
        self,
        keys: Sequence[str] | None = None,
        *,
        unused_seconds: float = 0.0,
        most_bytes: int = 0,
    ) -> Sequence[str]:
        """See `Environments.remove`."""
        self._ready.clear()
        return await (await self.steward()).remove_environments(keys, unused_seconds, most_bytes)

    async def close(self) -> None:
        """Give up all builds."""
        await cancel_and_wait(*(build.task for build in self._builds.values()))

    async def _built(self, request: EnvironmentRequest) -> bool:
        """Prepare an environment, unless another worker does so first; return whether it was it."""
        steward = await self.steward()
        try:
            await self._claim(steward, request)
        except EnvironmentReady:
            return False
        build = f"warm-{secrets.token_hex(8)}"
        try:
            await self._set_up(request, build, steward)
        finally:
            await uninterrupted(_clean_up(steward, request.key, build))
        return True

    async def _claim(self, steward: Steward, request: EnvironmentRequest) -> None:
        """Wait for the claim on a key, no longer than another worker may take.

        Raises:
            EnvironmentReady: Another worker has prepared it meanwhile.
            SandboxFailure: The steward failed, or the other worker hangs.
        """
        most_seconds = sum(step.timeout_seconds for step in request.steps) + SEAL_SECONDS
        try:
            async with asyncio.timeout(most_seconds):
                is_claimed = await steward.claim_environment(request.key)
                while not is_claimed:
                    await asyncio.sleep(BUSY_SECONDS)
                    is_claimed = await steward.claim_environment(request.key)
        except TimeoutError:
            raise SandboxStartFailed(
                "Another worker prepares the job's environment, and takes too long for it."
            ) from None

    async def _set_up(self, request: EnvironmentRequest, build: str, steward: Steward) -> None:
        *former, last = request.steps
        for step in former:
            async with self._opened(request, step, build) as sandbox:
                await sandbox.run_all()
                await steward.keep_ahead(build)
        async with self._opened(request, last, build) as sandbox:
            await sandbox.run_all()
            most_bytes = min(2 * (request.limits.disk_bytes or MAX_BYTES), MAX_BYTES)
            sealed = await steward.seal(request.key, build, request.record, most_bytes)
        log.info("environment prepared", key=request.key[:12], bytes=sealed["bytes"])

    @contextlib.asynccontextmanager
    async def _opened(
        self, request: EnvironmentRequest, step: SetupStep, build: str
    ) -> AsyncIterator[_Running]:
        """Yield a step in its sandbox, with the files of the steps before.

        Raises:
            SetupFailed: It needs more disk than it may.
            SandboxFailure: See `SandboxProvider.open`.
        """
        running = _Running(step)
        spec = SandboxSpec(
            job_id=build,
            attempt=1,
            image=request.image,
            limits=request.limits.model_copy(update={"network": step.network or "none"}),
            snapshot=request.snapshot,
            layers=request.layers,
            credentials=step.credentials,
            on_traffic=running.note,
        )
        try:
            async with self.open_ahead(spec) as running.sandbox:
                yield running
        except DiskLimitExceeded as failure:
            raise SetupFailed(f"The set-up of {step.source} failed: {failure}") from failure


async def _clean_up(steward: Steward, key: str, build: str) -> None:
    """Give up the claim, and delete what the set-up has left; the reaper does what fails here."""
    with contextlib.suppress(SandboxFailure):
        await steward.release_environment(key)
        await steward.delete(build, ahead=True)


class _Running:
    """The commands of one step."""

    sandbox: Sandbox

    def __init__(self, step: SetupStep) -> None:
        self._step = step
        self._unreachable = ""
        self._refused: dict[str, None] = {}

    def note(self, record: TrafficRecord) -> None:
        """Note which hosts were not reached."""
        if isinstance(record, ConnectionRecord) and not record.is_allowed:
            if record.is_unreachable:
                self._unreachable = record.host
            elif len(self._refused) < MAX_REFUSED:
                self._refused[f"{record.host}:{record.port}"] = None

    async def run_all(self) -> None:
        """Run the commands in their order.

        Raises:
            SetupFailed: One failed, or they took too long.
            SandboxFailure: The sandbox failed.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._step.timeout_seconds
        for command in self._step.commands:
            left = max(ends_at - loop.time(), 0.01)
            ended = await self.sandbox.run(
                Command(argv=command, timeout_seconds=left, max_output_bytes=OUTPUT_BYTES)
            )
            self._check(command, ended)

    def _check(self, command: str, ended: Execution) -> None:
        if ended.exit_code == 0 and not ended.timed_out:
            return
        first = command.strip().partition("\n")[0]
        shown = first if len(first) <= QUOTED_COMMAND else f"{first[:QUOTED_COMMAND]}…"
        what = f"The set-up of {self._step.source} failed: `{shown}` {self._why(ended)}"
        output = _CONTROL.sub("", ended.output.decode(errors="replace")).strip()
        if output:
            what += f" Its output ends with:\n{output[-QUOTED_CHARACTERS:]}"
        cut_off = self._unreachable and not ended.timed_out
        raise SetupCutOff(what) if cut_off else SetupFailed(what)

    def _why(self, ended: Execution) -> str:
        if ended.timed_out:
            return (
                "was stopped: the time of the set-up is "
                f"{self._step.timeout_seconds:g} s (timeout_seconds)."
            )
        if ended.out_of_memory:
            return "needed more memory than limits.memory_bytes of the agent."
        why = f"ended with exit code {ended.exit_code}."
        if self._unreachable:
            why += f" The host {self._unreachable} did not answer."
        if refused := [*dict.fromkeys((*self._refused, *self._step.denied))][:MAX_REFUSED]:
            why += f" It may not reach {', '.join(refused)}: see `network` of the agent's `setup`."
        return f"{why} {ended.notice}".rstrip()
