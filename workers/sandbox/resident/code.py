"""The code that is copied into containers.

The files of `workers/sandbox/inside` keep their names below `fanout`, so that its modules import
each other inside as they do here; the packages above it are empty. In a folder, the code is started
with `python3 -ISB FOLDER`, which runs its `__main__.py`.
"""

from __future__ import annotations

from importlib import resources

INSIDE = "fanout/workers/sandbox/inside"
"""Standard library only, Python 3.8 or later, nothing that python3-minimal lacks."""


def code_files(main_module: str = "resident") -> dict[str, bytes]:
    """Return the relative path and the content of each file.

    Args:
        main_module: a module of `workers.sandbox.inside` whose `main()` is run.
    """
    package = resources.files(INSIDE.replace("/", "."))
    files = {
        f"{INSIDE}/{file.name}": file.read_bytes()
        for file in package.iterdir()
        if file.name.endswith(".py")
    }
    for above in ("fanout", "fanout/workers", "fanout/workers/sandbox"):
        files[f"{above}/__init__.py"] = b""
    files["__main__.py"] = (
        f"from fanout.workers.sandbox.inside.{main_module} import main\nmain()\n".encode()
    )
    return files
