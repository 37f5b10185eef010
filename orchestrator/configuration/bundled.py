"""The data folders that fanout brings along: `config` and `sandbox_images`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def bundled(name: str) -> Path:
    """The path of a data folder.

    Inside the installed package, or beside the packages in a checkout.

    Args:
        name: `config` or `sandbox_images`.
    """
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
