"""What a sandbox needs of this package's code, as files to put into it.

The files keep their places in the package, so that they import each other inside as they do here. In a
folder, they are started with `python3 -ISB FOLDER` (which runs its `__main__.py`).
"""

from __future__ import annotations

from importlib import resources

RESIDENT_MODULES = ("wire", "resident_files", "resident_commands", "resident_forward", "resident")
"""Stdlib-only, Python 3.8 or later, nothing that python3-minimal lacks."""

_NEEDED_BY = {"change_scan": ("change_sides", "change_patch")}


def code_files(main_module: str = "resident", *more_modules: str) -> dict[str, bytes]:
    """Relative path and content of each file.

    Args:
        main_module: a module of `workers.sandbox` whose `main()` is run.
        more_modules: what it imports beside the resident's own modules.
    """
    names = dict.fromkeys((*RESIDENT_MODULES, *more_modules, main_module))
    names |= dict.fromkeys(needed for name in more_modules for needed in _NEEDED_BY.get(name, ()))
    package = resources.files("workers.sandbox")
    files = {f"workers/sandbox/{name}.py": package.joinpath(f"{name}.py").read_bytes() for name in names}
    files["workers/__init__.py"] = files["workers/sandbox/__init__.py"] = b""
    files["__main__.py"] = f"from workers.sandbox.{main_module} import main\nmain()\n".encode()
    return files
