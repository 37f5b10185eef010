"""A person's own merge driver, run as Git runs it.

It is a program of the person's configuration, never of a repository or a job. It gets three
temporary files and the file's path, and leaves the merged text in the second one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

from ..path_text import os_path
from .attributes import MergeRule
from .process import GitFailed

DRIVER_SECONDS = 60.0
"""The time for one file: a driver that installs packages to write a lock file takes some ten
seconds."""

MAX_MERGED_BYTES = 512 * 1024**2
"""The largest merged text: as much as a change bundle carries."""

_MAX_CONFLICTS = 128
"""The largest exit code that means conflicts, as Git documents."""

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "XDG_CONFIG_HOME")
"""The variables that are kept of the environment; the rest has the keys of models."""


def run_driver(
    rule: MergeRule, folder: Path, path: str, sides: tuple[bytes, bytes, bytes]
) -> bytes | None:
    """Return the merged text; None if the driver says that both sides conflict; blocks.

    Args:
        rule: The rule of the file, which names a driver.
        folder: Where it runs.
        path: The path of the file.
        sides: The common origin, the text to change, and the changed origin.

    Raises:
        GitFailed: It could not be started, failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="fanout-driver-") as name:
        places = [Path(name, one) for one in ("base", "ours", "theirs")]
        for place, content in zip(places, sides, strict=True):
            place.write_bytes(content)
        base, ours, theirs = (shlex.quote(str(place)) for place in places)
        values = {
            "O": base, "A": ours, "B": theirs, "L": str(rule.marker_size), "P": shlex.quote(os_path(path)),
            "S": "base", "X": "ours", "Y": "theirs", "%": "%",
        }  # fmt: skip
        command = re.sub(r"%([OABLPSXY%])", lambda found: values[found[1]], str(rule.driver))
        code = _run(command, folder)
        if code > _MAX_CONFLICTS or code < 0:
            raise GitFailed(f"the merge driver of {path} ended with code {code}")
        if places[1].stat().st_size > MAX_MERGED_BYTES:
            raise GitFailed(
                f"the merge driver of {path} wrote more than {MAX_MERGED_BYTES:,} bytes"
            )
        return None if code else places[1].read_bytes()


def _run(command: str, folder: Path) -> int:
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        process = subprocess.Popen(  # noqa: S602 - a command of the person's own configuration
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise GitFailed(f"a merge driver could not be started: {error.strerror}") from error
    try:
        return process.wait(DRIVER_SECONDS)
    except subprocess.TimeoutExpired:
        raise GitFailed("a merge driver took too long") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
        process.wait()
