"""A Debian base image without a registry: debootstrap into a folder, imported by the engine.

The mirror, the proxy and the certificates are those of the machine that builds; they are read when
it runs.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fanout.workers.sandbox.docker.engine import Engine, ImageBuildFailed, OnLine

RELEASE = "bookworm"
REPOSITORY, TAG = "fanout/debian", RELEASE
IMAGE = f"{REPOSITORY}:{TAG}"

_APT = Path("/etc/apt")
_CERTIFICATES = Path("usr/local/share/ca-certificates")
_LEFT_OUT = (
    "./proc/*",
    "./sys/*",
    "./dev/*",
    "./var/cache/apt/archives/*.deb",
    "./var/lib/apt/lists/*",
)
_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(\S.*)$", re.MULTILINE)
_ACQUIRE = re.compile(r"^Acquire::https?::(?:Proxy|CAInfo)\b.*;$", re.MULTILINE)


@dataclass(frozen=True)
class AptSource:
    """One line of a sources.list."""

    uri: str
    suite: str
    components: str

    def __str__(self) -> str:
        return f"deb {self.uri} {self.suite} {self.components}"


async def make_debian_base(engine: Engine, on_line: OnLine) -> None:
    """Create `fanout/debian:bookworm` on the engine, in about 40 s.

    Needs root and debootstrap on this machine.

    Args:
        engine: the engine that imports the image.
        on_line: receives the progress.

    Raises:
        ImageBuildFailed: names what is missing, or quotes debootstrap's last line.
        SandboxFailure: the engine rejects the image or does not answer.
    """
    if shutil.which("debootstrap") is None:
        raise ImageBuildFailed(
            "--bootstrap needs debootstrap: install the Debian package of that name."
        )
    if os.geteuid() != 0:
        raise ImageBuildFailed("--bootstrap needs root: debootstrap sets owners and devices.")
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="fanout-debian-"))
    try:
        root = folder / "root"
        await asyncio.to_thread(_bootstrap, root, on_line)
        on_line(f"Importing {IMAGE}")
        await _import(engine, root)
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


def _bootstrap(root: Path, on_line: OnLine) -> None:
    sources = host_sources()
    mirror = [source.uri for source in sources if source.suite == RELEASE][:1]
    by_https = any(source.uri.startswith("https:") for source in sources)
    include = ["--include=ca-certificates"] if by_https else []
    _run(["debootstrap", "--variant=minbase", *include, RELEASE, str(root), *mirror], on_line)
    if sources:
        (root / "etc/apt/sources.list").write_text("".join(f"{source}\n" for source in sources))
    _take_over_settings(root)
    if by_https:
        _take_over_certificates(root, on_line)


def _take_over_settings(root: Path) -> None:
    """The machine's proxy and certificate settings of apt, where it has any."""
    if shutil.which("apt-config") is None:
        return
    argv = ["apt-config", "dump"]
    dump = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    settings = _ACQUIRE.findall(dump.stdout)
    if settings:
        (root / "etc/apt/apt.conf.d/90host").write_text("\n".join(settings) + "\n")


def _take_over_certificates(root: Path, on_line: OnLine) -> None:
    """The machine's own certificate authorities: its https mirror may be signed by one."""
    (root / _CERTIFICATES).mkdir(parents=True, exist_ok=True)
    for certificate in (Path("/") / _CERTIFICATES).glob("*.crt"):
        shutil.copy(certificate, root / _CERTIFICATES)
    _run(["chroot", str(root), "update-ca-certificates"], on_line)


def _run(argv: Sequence[str], on_line: OnLine) -> None:
    last = ""
    with subprocess.Popen(  # noqa: S603 - our own arguments
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            last = line.strip() or last
            on_line(line.rstrip())
    if process.returncode:
        raise ImageBuildFailed(f"{argv[0]} ended with {process.returncode}: {last}")


async def _import(engine: Engine, root: Path) -> None:
    leave_out = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    argv = ["tar", "--numeric-owner", *leave_out, "-C", str(root), "-c", "."]
    process = await asyncio.to_thread(subprocess.Popen, argv, stdout=subprocess.PIPE)
    try:
        if process.stdout is not None:
            await engine.import_image(process.stdout, REPOSITORY, TAG)
    finally:
        process.kill()
        if await asyncio.to_thread(process.wait) not in {0, -9}:
            raise ImageBuildFailed("tar could not read the new root file system.")
