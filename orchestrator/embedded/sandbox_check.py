"""Refuses to start services without isolated commands, unless a person permits that."""

from __future__ import annotations

from collections.abc import Callable

from ..configuration.settings import Settings
from ..jobs.failures import JobFailure
from .python_process import run_helper

NOT_ALLOWED, NOT_BUILT = 4, 10
"""The program's exit codes when this user may not use the engine, and when the engine lacks images
that `fanout images build` builds."""

WITHOUT = (
    "; or use --sandbox local (FANOUT_SANDBOX__PROVIDER=local): commands then run as you, "
    "without isolation."
)


class NoSandbox(JobFailure):
    """Commands cannot be isolated here; the text says how to get an engine."""


class SandboxNotAllowed(NoSandbox):
    """This user may not use the Docker engine."""


class ImagesMissing(NoSandbox):
    """The engine answers and lacks images that `fanout images build` builds."""


class OtherSandbox(JobFailure):
    """The running services use another sandbox than the requested one."""


_KINDS = {NOT_ALLOWED: SandboxNotAllowed, NOT_BUILT: ImagesMissing}


async def require_sandbox(settings: Settings) -> None:
    """Return if jobs can run in the configured sandbox.

    Raises:
        NoSandbox: The Docker engine does not answer, or has no image for sandboxes.
        SandboxNotAllowed: This user may not use it.
        ImagesMissing: The images that are missing can be built.
    """
    if settings.sandbox.provider == "local":
        return
    try:
        ended = await run_helper("fanout.workers.extras.images", "ready", settings.sandbox.image)
    except TimeoutError:
        raise NoSandbox(_sentence("The check of the Docker engine does not end")) from None
    if ended.exit_code == 0:
        return
    kind = _KINDS.get(ended.exit_code, NoSandbox)
    raise kind(_sentence(ended.reason or "The check of the Docker engine failed"))


async def sandbox_of_demo(
    settings: Settings, notice: Callable[[str], None], *, may_build: bool = False
) -> Settings:
    """Return the settings, with local sandboxes if no engine is ready and none was chosen.

    This is for the demo only, whose commands are part of fanout.

    Args:
        settings: The settings of this process.
        notice: Called with a text if there is no engine.
        may_build: Whether a person can be asked to build missing images.

    Raises:
        ImagesMissing: Only images are missing, and `may_build`.
        NoSandbox: No engine is ready, and a setting asks for one.
    """
    try:
        await require_sandbox(settings)
    except NoSandbox as error:
        asked = "provider" in settings.sandbox.model_fields_set
        if asked or (may_build and isinstance(error, ImagesMissing)):
            raise
        notice(f"{str(error).removesuffix(WITHOUT)}. The demo's own commands run without it.")
        return in_local_sandbox(settings)
    return settings


def in_local_sandbox(settings: Settings) -> Settings:
    """Return the settings with local sandboxes."""
    local = settings.sandbox.model_copy(update={"provider": "local"})
    return settings.model_copy(update={"sandbox": local})


def require_same_sandbox(settings: Settings, running: str, folder: object) -> None:
    """Return if a running worker uses the configured sandbox.

    Args:
        settings: The settings of this process.
        running: The sandbox of the worker.
        folder: Its state folder.

    Raises:
        OtherSandbox: It uses another one.
    """
    asked = settings.sandbox.provider
    if running != asked:
        raise OtherSandbox(
            f"The worker in {folder} runs commands in the sandbox {running!r}, but {asked!r} is "
            f"requested: stop it with `fanout down`, or use --sandbox {running}."
        )


def _sentence(reason: str) -> str:
    return reason.rstrip(".") + WITHOUT
