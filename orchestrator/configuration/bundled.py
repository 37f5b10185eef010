"""The data folders of fanout: `config` and `sandbox_images`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def bundled(name: str) -> Path:
    """Return the path of a data folder: in the installed package, or in the checkout.

    Args:
        name: `config` or `sandbox_images`.
    """
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
