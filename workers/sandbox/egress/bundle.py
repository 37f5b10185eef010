"""The certificate authorities that the programs in a sandbox trust, in one file."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from fanout.workers.sandbox.protocol import Sandbox

SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian and its descendants, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora and its descendants
    "/etc/ssl/cert.pem",
)
MAX_BUNDLE_BYTES = 4 << 20
"""Of the system's authorities: several times as many as there are."""


async def install_bundle(
    sandbox: Sandbox, path: str, authority: bytes, ca_file: Path | None
) -> None:
    """Write a bundle of the image's authorities, the installation's own and the sandbox's.

    So hosts for which TLS does not end at the proxy are verified end to end. An image without
    authorities gets those of the worker's system.

    Args:
        sandbox: an open sandbox.
        path: where the bundle is written.
        authority: the certificate of the sandbox's authority.
        ca_file: the installation's own authorities.

    Raises:
        OSError: the bundle cannot be written, or `ca_file` cannot be read.
        SandboxFailure: the sandbox failed.
    """
    parts = [await _of_image(sandbox) or await asyncio.to_thread(_of_worker), authority]
    if ca_file is not None:
        parts.append(await asyncio.to_thread(ca_file.read_bytes))
    await sandbox.write_bytes(path, b"\n".join(parts), mode=0o444)


async def _of_image(sandbox: Sandbox) -> bytes:
    for path in SYSTEM_BUNDLES:
        try:
            return await sandbox.read_bytes(path, MAX_BUNDLE_BYTES)
        except OSError:
            continue
    return b""


def _of_worker() -> bytes:
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else b""
