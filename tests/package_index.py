"""A package index of tests, for pip and npm, that sandboxes reach through their proxy."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.loopback import LoopbackHandler, loopback_server

ADDRESS = "127.0.0.2"
"""Sandboxes ask their proxy for it: 127.0.0.1 is their own."""


@dataclass
class Index:
    """What the index has, and what was asked for."""

    url: str
    wheels: dict[str, bytes] = field(default_factory=dict)
    """By file name."""
    tarballs: dict[str, bytes] = field(default_factory=dict)
    """npm's packages, by name and version."""
    asked: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """The entry of `network` that permits it."""
        return self.url.removeprefix("http://")

    def add_wheel(self, name: str, version: str, files: Mapping[str, str]) -> None:
        file = f"{name}-{version}-py3-none-any.whl"
        self.wheels[file] = make_wheel(name, version, files)

    def add_npm(self, name: str, version: str, files: Mapping[str, str]) -> dict[str, str]:
        """Add a package; return its entry in a lock file."""
        manifest = json.dumps({"name": name, "version": version, "main": "index.js"})
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for path, text in {"package.json": manifest, **files}.items():
                member = tarfile.TarInfo(f"package/{path}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        content = buffer.getvalue()
        self.tarballs[f"{name}-{version}.tgz"] = content
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        return {
            "version": version,
            "resolved": f"{self.url}/npm/{name}-{version}.tgz",
            "integrity": f"sha512-{digest}",
        }


def make_wheel(name: str, version: str, files: Mapping[str, str]) -> bytes:
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*members, f"{info}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in {**members, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return buffer.getvalue()


class _Handler(LoopbackHandler):
    def get(self) -> None:
        index: Index = self.state
        # a client that speaks to a proxy names the whole address
        path = unquote(self.path.removeprefix(index.url))
        index.asked.append(path)
        name = path.rstrip("/").rpartition("/")[2]
        if path.startswith("/simple/"):
            found = [file for file in index.wheels if file.startswith(f"{name.replace('-', '_')}-")]
            links = "".join(f'<a href="/wheels/{file}">{file}</a>' for file in found)
            self.send(200 if found else 404, links.encode(), "text/html")
        elif path.startswith("/wheels/"):
            self.send(200, index.wheels[name], "application/octet-stream")
        elif name in index.tarballs:
            self.send(200, index.tarballs[name], "application/octet-stream")
        else:
            self.send(404, b"{}")


@contextmanager
def package_index() -> Iterator[Index]:
    """Serve an empty index."""
    with loopback_server(_Handler, Index, ADDRESS) as index:
        yield index
