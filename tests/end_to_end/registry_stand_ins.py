"""Images of Debian's packages that stand for those of a registry, which is not reached everywhere.

They have what docker-compose.yml and the Dockerfile use of the official ones: programs, users and
folders.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import docker

DEBIAN = "fanout/debian:bookworm"
SANDBOX = "fanout/python:latest"
PYTHON = "fanout-test/compose-python"
REDIS = "fanout-test/compose-redis"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

INSTALL = (
    "RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "
    "--no-install-recommends {packages} >/dev/null && rm -rf /var/lib/apt/lists/*\n"
)
DOCKERFILES = {
    # The package index may be signed by an authority of this machine's own.
    PYTHON: f"FROM {DEBIAN}\n"
    + INSTALL.format(packages="ca-certificates python3 python3-venv")
    + f"COPY {AUTHORITIES.name} {AUTHORITIES}\n"
    f"ENV PIP_CERT={AUTHORITIES}\n"
    "RUN ln -s /usr/bin/python3 /usr/local/bin/python3\n",
    REDIS: f"FROM {DEBIAN}\n"
    "RUN groupadd --system --gid 1000 redis && useradd --system --uid 999 --gid redis redis\n"
    + INSTALL.format(packages="redis-server")
    + "RUN install -d -o redis -g redis /data\n"
    "VOLUME /data\nWORKDIR /data\nEXPOSE 6379\n"
    'CMD ["redis-server"]\n',
}


def has_image(image: str) -> bool:
    found = subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False)
    return found.returncode == 0


def make_stand_ins() -> None:
    """Make what is missing on the engine; the sandboxes' images belong to it."""
    if not (has_image(DEBIAN) and has_image(SANDBOX)):
        program = shutil.which("fanout") or ".venv/bin/fanout"
        subprocess.run([program, "images", "build", "--bootstrap"], check=True)
    for image, dockerfile in DOCKERFILES.items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(AUTHORITIES, folder)
            (Path(folder) / "Dockerfile").write_text(dockerfile)
            docker("build", "--quiet", "--tag", image, folder)
