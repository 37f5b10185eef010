"""A Debian base image without a registry: mmdebstrap's archive, imported by the engine.

The mirror, the proxy and the certificates are those of the machine that builds; they are read when
it runs.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.images.builder_calls import (
    ImageBuildFailed,
    OnLine,
    import_image,
)

RELEASE = "bookworm"
REPOSITORY, TAG = "fanout/debian", RELEASE
IMAGE = f"{REPOSITORY}:{TAG}"
PROGRAM = "mmdebstrap"

_APT = Path("/etc/apt")
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(\S.*)$", re.MULTILINE)
_ACQUIRE = re.compile(r"^Acquire::https?::(?:Proxy|CAInfo)\b.*;$", re.MULTILINE)
_REASON = re.compile(r"^E: (?!(?:mmdebstrap|setup) failed)(.*)$")


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
    return shutil.which(PROGRAM) is not None


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
            f"--bootstrap needs {PROGRAM}: install the Debian package of that name."
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
    return source.suite.startswith(RELEASE) and name in {"debian", "debian-security"}


def _command(archive: Path, listed: Path) -> list[str]:
    """Return the command that writes the archive; the machine's sources are written to `listed`."""
    sources = host_sources()
    argv = [PROGRAM, "--variant=minbase", "--include=ca-certificates", "--skip=output/dev"]
    argv += [f"--aptopt={line}" for line in _host_settings()]
    # An https mirror may be signed by an authority of this machine's own.
    argv += _certificate_hooks(sorted(_CERTIFICATES.glob("*.crt")))
    argv += [RELEASE, str(archive)]
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
        raise ImageBuildFailed(f"{PROGRAM} could not make {IMAGE}: {why}")


async def _import(engine: Engine, archive: Path) -> None:
    with await asyncio.to_thread(archive.open, "rb") as opened:
        await import_image(engine, opened, REPOSITORY, TAG)
