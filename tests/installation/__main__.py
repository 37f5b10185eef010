"""`python -m tests.installation`: the wheel as a stranger meets it, outside of the repository.

It is built, compared with the repository, and installed with `uv tool`, `pipx` and `pip`, on every
Python from 3.11 on that is found. Then commands are run in a folder whose packages are named like
ours, without Docker, without a redis-server, and without keys.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.architecture.sources import REPOSITORY, repository_files
from tests.installation.stranger import Failed, Stranger, run

OLDEST = (3, 11)
CONSTRAINTS = REPOSITORY / "constraints.txt"
UV = str(Path(sys.executable).with_name("uv"))
IN_WHEEL = {
    "fanout": "fanout",
    "orchestrator": "fanout/orchestrator",
    "workers": "fanout/workers",
    "config": "fanout/orchestrator/data/config",
    "sandbox_images": "fanout/orchestrator/data/sandbox_images",
}
"""Folders of the repository → where they are in the wheel."""


def main() -> int:
    """The program; 0 only when every step succeeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.installation", description=__doc__)
    parser.add_argument(
        "--python", action="append", type=Path, help="one to try; default: all that are found"
    )
    parser.add_argument(
        "--newest", action="store_true", help="the newest dependencies instead of constraints.txt"
    )
    parser.add_argument(
        "--one-of-each", action="store_true", help="only `uv tool`, on the oldest Python"
    )
    options = parser.parse_args()
    os.environ["PIP_NO_COMPILE"] = "1"  # pip would compile what no step imports, for half a minute
    if not options.newest:
        os.environ |= dict.fromkeys(("UV_CONSTRAINT", "PIP_CONSTRAINT"), str(CONSTRAINTS))
    pythons = options.python or found_pythons()
    with tempfile.TemporaryDirectory(prefix="fanout-installation-") as folder:
        try:
            install_everywhere(Path(folder), pythons, once=options.one_of_each)
        except Failed as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


def install_everywhere(folder: Path, pythons: list[Path], *, once: bool) -> None:
    with step("build the wheel from the source distribution"):
        run(UV, "build", "--quiet", "--out-dir", folder / "dist", REPOSITORY)
        [wheel] = folder.glob("dist/*.whl")
    with step("the wheel has every file of the repository"):
        check_content(wheel)
    ways: list[tuple[str, Callable[[Path, Path, Path], Path]]] = [
        ("uv tool install", by_uv_tool),
        ("pipx install", by_pipx),
        ("pip install in a project's environment", by_pip),
    ]
    ways += [("uv pip install", by_uv_pip)] * (len(pythons) - len(ways))
    for number, (name, install) in enumerate(ways[:1] if once else ways):
        python = pythons[number % len(pythons)]
        version = run(python, "-V").split()[1]
        own = folder / f"way-{number}"
        own.mkdir()
        with step(f"{name}, Python {version}"):
            bin_folder = install(own, wheel, python)
        stranger = Stranger(own, bin_folder)
        for check in stranger.checks(runs=number < len(pythons), serves=number == 0):
            with step(f"    {check.__name__.replace('_', ' ')}"):
                check()


def check_content(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        name.replace(folder, place, 1)
        for name in repository_files()
        for folder, place in IN_WHEEL.items()
        if name.startswith(f"{folder}/") and not (REPOSITORY / name).is_dir()
    }
    if missing := sorted(expected - packed):
        raise Failed(f"the wheel does not have {', '.join(missing)}")


def by_uv_tool(own: Path, wheel: Path, python: Path) -> Path:
    places = {"UV_TOOL_DIR": str(own / "tools"), "UV_TOOL_BIN_DIR": str(own / "bin")}
    run(UV, "tool", "install", "--quiet", "--python", python, wheel, env=places)
    return own / "bin"


def by_pipx(own: Path, wheel: Path, python: Path) -> Path:
    places = {"PIPX_HOME": str(own / "pipx"), "PIPX_BIN_DIR": str(own / "bin")}
    run(UV, "tool", "run", "pipx", "install", "--quiet", "--python", python, wheel, env=places)
    return own / "bin"


def by_pip(own: Path, wheel: Path, python: Path) -> Path:
    run(python, "-m", "venv", own / "venv")
    run(own / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
    return own / "venv/bin"


def by_uv_pip(own: Path, wheel: Path, python: Path) -> Path:
    run(UV, "venv", "--quiet", "--python", python, own / "venv")
    run(UV, "pip", "install", "--quiet", "--python", own / "venv/bin/python", wheel)
    return own / "venv/bin"


def found_pythons() -> list[Path]:
    """One of each minor version: of PATH, then of pyenv."""
    found: dict[tuple[int, ...], Path] = {}
    for path in candidates():
        probe = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
        ended = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            found.setdefault(tuple(map(int, ended.stdout.split())), path)
    return [path for version, path in sorted(found.items()) if version >= OLDEST]


def candidates() -> Iterator[Path]:
    for minor in range(OLDEST[1], OLDEST[1] + 9):
        if named := shutil.which(f"python3.{minor}"):
            yield Path(named)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/*/bin/python3"))


@contextmanager
def step(name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{time.monotonic() - started:6.1f} s  {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
