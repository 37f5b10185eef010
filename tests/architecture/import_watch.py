"""Imports the modules that its arguments name, and prints what our code does meanwhile.

Run as a program in a process of its own, from the repository's folder.
"""

import importlib
import os
import sys
from pathlib import Path
from types import FrameType

WATCHED = {
    "open",
    "socket.connect",
    "socket.bind",
    "subprocess.Popen",
    "os.mkdir",
    "os.remove",
    "os.listdir",
}
REPOSITORY = f"{Path.cwd().resolve()}{os.sep}"

seen: list[str] = []


def author(frame: FrameType | None) -> str:
    """The file whose code asked; none for what the import machinery does for an import."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return ""
        if not name.startswith("<frozen") and name != os.__file__:
            return os.path.realpath(name)
        frame = frame.f_back
    return ""


def is_ours(name: str) -> bool:
    return (
        name.startswith(REPOSITORY) and "/.venv/" not in name and name != os.path.realpath(__file__)
    )


def note(what: str, frame: FrameType | None) -> None:
    name = author(frame)
    if is_ours(name):
        seen.append(f"{name.removeprefix(REPOSITORY)}: {what}")


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in WATCHED:
        note(f"{event} {arguments[0]}", sys._getframe(1))


class WatchedEnvironment(type(os.environ)):
    def __getitem__(self, key: str) -> str:
        note(f"environment {key}", sys._getframe(1))
        return str(super().__getitem__(key))


def main() -> None:
    os.environ.__class__ = WatchedEnvironment
    sys.addaudithook(watch)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print("\n".join(seen), end="")


main()
