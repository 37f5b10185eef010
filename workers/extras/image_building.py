"""Our images: what an engine has of them, and building those that are missing.

Each is built after the one that it is built on. Where no registry is reachable, mmdebstrap makes
an archive of Debian, which the engine imports as the base. The mirror, the proxy and the
certificates are those of the machine that builds; they are read when it runs. The Dockerfiles are
in `sandbox_images/`.
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
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from fanout.orchestrator.configuration.bundled import bundled
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.shortening import one_line
from fanout.orchestrator.valid_text import printable

from ..sandbox.docker.engine import Engine
from ..sandbox.docker.image_failures import BUILT_ON, image_missing, nearest, tag
from ..sandbox.docker.provider import STEWARD_IMAGE
from ..sandbox.errors import EngineUnavailable

OnLine = Callable[[str], None]
"""Receives a line of progress; called in a thread."""

_SILENCE_SECONDS = 900
"""How long a build may be silent: installing packages prints nothing."""
_PIECE_BYTES = 1 << 20
"""The bytes read at once of an archive: a chunk of the request, small compared to the archive."""

_UNREACHABLE = re.compile(r"dial tcp|lookup |no such host|[Tt]imeout|deadline exceeded|refused|EOF")
_UNKNOWN = re.compile(r"not found|manifest unknown|denied|unauthorized|does not exist")
"""What engines say about pulls; a public registry denies what does not exist."""
DEBIAN_RELEASE = "bookworm"
DEBIAN_REPOSITORY, DEBIAN_TAG = "fanout/debian", DEBIAN_RELEASE
DEBIAN_IMAGE = f"{DEBIAN_REPOSITORY}:{DEBIAN_TAG}"
BOOTSTRAP_PROGRAM = "mmdebstrap"

_APT = Path("/etc/apt")
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(\S.*)$", re.MULTILINE)
_ACQUIRE = re.compile(r"^Acquire::https?::(?:Proxy|CAInfo)\b.*;$", re.MULTILINE)
_REASON = re.compile(r"^E: (?!(?:mmdebstrap|setup) failed)(.*)$")
KEPT_LINES = 20
"""The lines of the builder's output that are printed when a build fails: one screen's share that
has the reason."""
USUAL_COLUMNS = 80
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_STEP = re.compile(r"^Step (?P<number>\d+)/(?P<all>\d+) : (?P<what>.*)$")
FOLDER = bundled("sandbox_images")

CONTENT_LABEL = "fanout.content"
"""The label with the hash of the folder from which an image was built."""
BASE_LABEL = "fanout.base"
"""The label with the name of the image that it was built on."""

ANSWER_SECONDS = 1.5
"""The time for an engine's answer to a check, so that a command refuses within 3 s; a busy engine
takes tenths of a second. A worker itself is more patient."""
DEBIAN = "debian:bookworm-slim"
"""What the lowest image is built on, from a registry; the Dockerfile's own default."""

SECONDS = {"base": 110, "python": 30}
"""How long a build takes about, measured on two busy cores with a near mirror: for the notice."""
BASE_SECONDS = 30
"""The same for the image that the lowest one is built on."""

_NO_APT = 127
"""The exit code of a shell that does not find a program: the Dockerfiles' first is apt-get."""
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


class ImageBuildFailed(Exception):
    """An image could not be built; the message quotes the builder."""


class RegistryFailed(ImageBuildFailed):
    """An image could not be pulled: its registry is not reachable, or does not have it."""


async def build_image(
    engine: Engine,
    folder: Path,
    tag: str,
    *,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    on_line: OnLine,
) -> None:
    """Build a folder with a Dockerfile, on the host's network.

    The host's resolver may listen on loopback only, hence its network.

    Args:
        engine: the engine that builds.
        folder: the build context.
        tag: the image's name.
        arguments: the build arguments.
        labels: the image's labels.
        on_line: receives the progress.

    Raises:
        ImageBuildFailed: quotes the builder.
        SandboxFailure: see `Engine.call`.
    """

    def build(api: Any) -> None:
        answers = api.build(
            path=str(folder), tag=tag, buildargs=dict(arguments), labels=dict(labels),
            network_mode="host", rm=True, forcerm=True, decode=True, timeout=_SILENCE_SECONDS,
        )  # fmt: skip
        for answer in answers:
            if "error" in answer:
                raise ImageBuildFailed(
                    f"The image {tag} could not be built: {answer['error'].strip()}"
                )
            for line in str(answer.get("stream", "")).splitlines():
                on_line(line)

    await engine.call(f"build {tag}", build)


async def pull_image(engine: Engine, image: str, on_line: OnLine) -> None:
    """Pull an image from its registry.

    Args:
        engine: the engine that pulls.
        image: its name, with a tag.
        on_line: receives the progress.

    Raises:
        RegistryFailed: quotes the engine.
        EngineUnavailable: the engine does not answer.
    """

    def pull(api: Any) -> str | None:
        for answer in api.pull(image, stream=True, decode=True):
            if "error" in answer:
                return str(answer["error"])
            on_line(" ".join(str(answer[key]) for key in ("id", "status") if key in answer))
        return None

    try:
        reason = await engine.call(f"pull {image}", pull)
    except EngineUnavailable:
        raise
    except SandboxFailure as failure:
        reason = str(failure)
    if reason is not None:
        raise RegistryFailed(_why_not_pulled(image, reason, await engine.image_names()))


def _why_not_pulled(image: str, reason: str, others: Iterable[str]) -> str:
    """Return one sentence about a pull that failed.

    Args:
        image: the name that was to be pulled.
        reason: what the engine said, which quotes Go's network library.
        others: the names that the engine has.
    """
    meant = nearest(image, others)
    advice = f"; the nearest name on the engine is {meant}." if meant else "."
    if _UNREACHABLE.search(reason):
        return f"The image {image} is not on this engine, and its registry does not answer{advice}"
    if _UNKNOWN.search(reason):
        return f"There is no image {image}, neither on this engine nor in its registry{advice}"
    return f"The image {image} could not be pulled: {reason.strip()}"


async def import_image(engine: Engine, archive: IO[bytes], repository: str, tag: str) -> None:
    """Create an image from the tar of a root file system.

    Raises:
        SandboxFailure: see `Engine.call`.
    """

    def take(api: Any) -> None:
        pieces = iter(partial(archive.read, _PIECE_BYTES), b"")  # of a file it would send the size
        api.import_image_from_stream(pieces, repository=repository, tag=tag)

    await engine.call(f"import {repository}", take)


@dataclass(frozen=True)
class AptSource:
    """One line of a sources.list."""

    uri: str
    suite: str
    components: str

    def __str__(self) -> str:
        return f"deb {self.uri} {self.suite} {self.components}"


def can_make() -> bool:
    """Whether this machine has the program that makes the image."""
    return shutil.which(BOOTSTRAP_PROGRAM) is not None


async def make_debian_base(engine: Engine, on_line: OnLine) -> None:
    """Create `fanout/debian:bookworm` on the engine, in about 20 s.

    Needs mmdebstrap on this machine, which works without root where user namespaces do.

    Args:
        engine: the engine that imports the image.
        on_line: receives the progress.

    Raises:
        ImageBuildFailed: names what is missing, or quotes mmdebstrap's reason.
        SandboxFailure: the engine rejects the image or does not answer.
    """
    if not can_make():
        raise ImageBuildFailed(
            f"--bootstrap needs {BOOTSTRAP_PROGRAM}: install the Debian package of that name."
        )
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fanout-debian-"))
    try:
        archive = folder / "root.tar"
        argv = await asyncio.to_thread(_command, archive, folder / "sources.list")
        await asyncio.to_thread(_run, argv, on_line)
        await _import(engine, archive)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def host_sources(apt: Path = _APT) -> list[AptSource]:
    """Return the machine's own Debian sources of the release; none on another system."""
    found = [
        AptSource(*match)
        for path in _files(apt, "list")
        for match in _ONE_LINE.findall(path.read_text())
    ]
    for path in _files(apt, "sources"):
        for stanza in path.read_text().split("\n\n"):
            found += _of_stanza(stanza)
    return [source for source in found if _is_of_release(source)]


def _files(apt: Path, ending: str) -> list[Path]:
    return sorted([*apt.glob(f"sources.{ending}"), *apt.glob(f"sources.list.d/*.{ending}")])


def _of_stanza(stanza: str) -> list[AptSource]:
    """Return the sources of one deb822 stanza."""
    lines = (line.partition(":") for line in stanza.splitlines() if not line.startswith(("#", " ")))
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    if fields.get("enabled", "yes").lower() == "no" or "deb" not in fields.get("types", "").split():
        return []
    return [
        AptSource(uri, suite, fields.get("components", "main"))
        for uri in fields.get("uris", "").split()
        for suite in fields.get("suites", "").split()
    ]


def _is_of_release(source: AptSource) -> bool:
    name = source.uri.rstrip("/").rpartition("/")[2]
    return source.suite.startswith(DEBIAN_RELEASE) and name in {"debian", "debian-security"}


def _command(archive: Path, listed: Path) -> list[str]:
    """Return the command that writes the archive; the machine's sources are written to `listed`."""
    sources = host_sources()
    argv = [
        BOOTSTRAP_PROGRAM,
        "--variant=minbase",
        "--include=ca-certificates",
        "--skip=output/dev",
    ]
    argv += [f"--aptopt={line}" for line in _host_settings()]
    # An https mirror may be signed by an authority of this machine's own.
    argv += _certificate_hooks(sorted(_CERTIFICATES.glob("*.crt")))
    argv += [DEBIAN_RELEASE, str(archive)]
    if sources:
        listed.write_text("".join(f"{source}\n" for source in sources))
        argv.append(str(listed))
    return argv


def _host_settings() -> Sequence[str]:
    """Return the machine's proxy and certificate settings of apt, where it has any."""
    if shutil.which("apt-config") is None:
        return ()
    argv = ["apt-config", "dump"]
    dump = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    return _ACQUIRE.findall(dump.stdout)


def _certificate_hooks(certificates: Sequence[Path]) -> Iterator[str]:
    if not certificates:
        return
    for certificate in certificates:
        yield f"--customize-hook=upload '{certificate}' '{certificate}'"
    yield '--customize-hook=chroot "$1" update-ca-certificates'


def _run(argv: Sequence[str], on_line: OnLine) -> None:
    reason = ""
    with subprocess.Popen(  # noqa: S603 - our own arguments
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stderr or ():
            said = _REASON.match(line.strip())
            reason = said[1] if said else reason
            on_line(line)
    if process.returncode:
        why = reason or f"it ended with {process.returncode}"
        raise ImageBuildFailed(f"{BOOTSTRAP_PROGRAM} could not make {DEBIAN_IMAGE}: {why}")


async def _import(engine: Engine, archive: Path) -> None:
    with await asyncio.to_thread(archive.open, "rb") as opened:
        await import_image(engine, opened, DEBIAN_REPOSITORY, DEBIAN_TAG)


class BuildProgress:
    """The progress of one piece of work; its `line` may be called in a thread."""

    def __init__(self, title: str, stream: TextIO | None = None, columns: int = 0) -> None:
        """Make it; nothing is printed before `begin`.

        Args:
            title: what is made.
            stream: where it is printed; None: stderr.
            columns: the width of a terminal; 0: that of the stream, which is a pipe if it has none.
        """
        self._stream = sys.stderr if stream is None else stream
        self._columns = columns or _columns(self._stream)
        self._title = title
        self._step = ""
        self._began = 0.0
        self._last: deque[str] = deque(maxlen=KEPT_LINES)

    def begin(self) -> None:
        """Say that the work begins."""
        self._began = time.monotonic()
        self._show("begins")

    def line(self, text: str) -> None:
        """Take a line of the builder's output."""
        text = printable(_UNPRINTABLE.sub(" ", text)).strip()
        if not text:
            return
        self._last.append(text)
        step = _STEP.match(text)
        if step is not None:
            self._step = f"step {step['number']} of {step['all']}"
            self._show(step["what"])
        elif self._columns:
            self._show(text)

    def step(self, what: str) -> None:
        """Say that a step begins."""
        self._step = what
        self._show("")

    def end(self) -> None:
        """Say that the work is done."""
        self._clear()
        self._print(f"{self._title}: done in {time.monotonic() - self._began:.0f} s")

    def fail(self) -> None:
        """Print the last lines of the builder's output, which have the reason."""
        self._clear()
        for line in self._last:
            self._print(f"  {line}")

    def _show(self, what: str) -> None:
        if not self._columns:
            self._print(one_line(": ".join(filter(None, (self._title, self._step, what)))))
            return
        seconds = f"{time.monotonic() - self._began:.0f} s"
        parts = (self._title, seconds, self._step, what)
        text = one_line(" · ".join(filter(None, parts)), self._columns - 1)
        print(f"\r\x1b[2K{text}", end="", file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._columns:
            print("\r\x1b[2K", end="", file=self._stream, flush=True)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _columns(stream: TextIO) -> int:
    """Return the width of a terminal that can change a line; 0 for anything else."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    except OSError:
        return USUAL_COLUMNS


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """One of our images on an engine."""

    name: str
    image: str
    present: bool
    up_to_date: bool
    """Built from the folder in its present state."""
    size_bytes: int = 0
    base: str = ""
    """What it was built on; empty when it is not known."""


def content_hash(name: str) -> str:
    """Return the hash of an image's folder and of those that it is built on."""
    digest = hashlib.sha256((content_hash(below) if (below := BUILT_ON.get(name)) else "").encode())
    for path in sorted((FOLDER / name).rglob("*")):
        if path.is_file() and path.name != "README.md":
            digest.update(f"{path.relative_to(FOLDER)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


async def list_images(engine: Engine) -> list[ImageStatus]:
    """Return the status of all our images on an engine, in the order of building.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    return [
        await image_status(engine, name, await asyncio.to_thread(content_hash, name))
        for name in BUILT_ON
    ]


async def image_status(engine: Engine, name: str, content: str) -> ImageStatus:
    """Return the status of one image on an engine.

    Args:
        engine: the engine.
        name: the image's name, without `fanout/`.
        content: the hash of what it would be built from now.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    found = await engine.image(tag(name))
    labels = (found or {}).get("Config", {}).get("Labels") or {}
    return ImageStatus(
        name=name,
        image=tag(name),
        present=found is not None,
        up_to_date=labels.get(CONTENT_LABEL) == content,
        size_bytes=(found or {}).get("Size", 0),
        base=labels.get(BASE_LABEL, ""),
    )


async def require_images(image: str) -> None:
    """Return at once if the engine of the environment answers and has the images of a sandbox.

    Raises:
        EngineForbidden: this user may not use it.
        EngineUnavailable: it does not answer.
        ImageMissing: the message says what to do about it.
    """
    engine = Engine(call_seconds=ANSWER_SECONDS)
    try:
        for name in (STEWARD_IMAGE, image):
            if await engine.image(name) is None:
                raise image_missing(name, await engine.image_names())
    finally:
        await engine.close()


class WantedImages(NamedTuple):
    """What a person asked for."""

    names: Collection[str] = ()
    """The images; empty: all."""
    base: str | None = None
    """What the lowest image is built on; None: an image of Debian that can be had."""
    bootstrap: bool = False
    """Make that from Debian packages, whether or not a registry is reachable."""
    force: bool = False
    """Build also what is up to date."""


def to_build(statuses: Collection[ImageStatus], wanted: WantedImages) -> list[str]:
    """Return the images that have to be built, in this order.

    An image is built if it is missing or out of date, if it was built on another base than the
    wanted one, or if the one below it is built.

    Args:
        statuses: all our images on the engine.
        wanted: what a person asked for.
    """
    found = {status.name: status for status in statuses}
    needed = set(wanted.names or BUILT_ON)
    for name, below in reversed([*BUILT_ON.items()]):
        if name in needed and below is not None and not found[below].up_to_date:
            needed.add(below)
    chosen: list[str] = []
    for name, below in BUILT_ON.items():
        forced = wanted.force and name in (wanted.names or BUILT_ON)
        other_base = below is None and wanted.base not in {None, found[name].base}
        stale = not found[name].up_to_date or other_base or forced
        if name in needed and (stale or below in chosen):
            chosen.append(name)
    return chosen


def expected_seconds(names: Collection[str]) -> int:
    """Return how long it takes about to build these images, in seconds."""
    lowest = BASE_SECONDS if any(BUILT_ON[name] is None for name in names) else 0
    return sum(SECONDS[name] for name in names) + lowest


async def build(engine: Engine, name: str, wanted: WantedImages) -> None:
    """Build an image and print the progress; the one below it must exist.

    Raises:
        ImageBuildFailed: quotes the builder.
        SandboxFailure: the engine does not answer.
    """
    below = BUILT_ON[name]
    base = await _lowest(engine, wanted) if below is None else tag(below)
    arguments = {
        variable: value for variable in _PROXY_VARIABLES if (value := os.environ.get(variable))
    }
    labels = {CONTENT_LABEL: await asyncio.to_thread(content_hash, name)}
    if below is None and wanted.base is not None:
        labels[BASE_LABEL] = wanted.base
    progress = BuildProgress(tag(name))
    progress.begin()
    try:
        await build_image(
            engine, FOLDER / name, tag(name), arguments=arguments | {"BASE_IMAGE": base},
            labels=labels, on_line=progress.line,
        )  # fmt: skip
    except ImageBuildFailed as failure:
        progress.fail()
        if f"non-zero code: {_NO_APT}" in str(failure):
            raise ImageBuildFailed(
                f"{tag(name)} cannot be built on {base}, which has no apt-get: name an image of "
                "Debian or Ubuntu with --base."
            ) from None
        raise
    progress.end()


async def _lowest(engine: Engine, wanted: WantedImages) -> str:
    """Return the image to build the lowest of ours on, which the engine has.

    Raises:
        ImageBuildFailed: it cannot be had; the message says what to do.
    """
    if wanted.base is not None:
        if await engine.image(wanted.base) is None:
            await _pull(engine, wanted.base)
        return wanted.base
    for image in () if wanted.bootstrap else (DEBIAN, DEBIAN_IMAGE):
        if await engine.image(image) is not None:
            return image
    if not wanted.bootstrap:
        try:
            await _pull(engine, DEBIAN)
        except RegistryFailed as failure:
            if not can_make():
                raise ImageBuildFailed(
                    f"{failure} Install the Debian package {BOOTSTRAP_PROGRAM}, with which the "
                    "base is made without a registry, and build again; or name an image of Debian "
                    "that the engine has with --base."
                ) from None
        else:
            return DEBIAN
    await _bootstrap(engine)
    return DEBIAN_IMAGE


async def _pull(engine: Engine, image: str) -> None:
    progress = BuildProgress(f"pulling {image}")
    progress.begin()
    try:
        await pull_image(engine, image, progress.line)
    except ImageBuildFailed:
        progress.fail()
        raise
    progress.end()


async def _bootstrap(engine: Engine) -> None:
    if await engine.image(DEBIAN_IMAGE) is not None:
        return
    progress = BuildProgress(f"{DEBIAN_IMAGE} from Debian's packages")
    progress.begin()
    try:
        await make_debian_base(engine, progress.line)
    except ImageBuildFailed:
        progress.fail()
        raise
    progress.end()
