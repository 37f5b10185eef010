"""Celery's loader that imports from the path only, for parents, workers and Flower."""

from __future__ import annotations

import importlib
from typing import Any

from celery.loaders.app import AppLoader


class PathLoader(AppLoader):  # type: ignore[misc] # Celery ships no types
    """Imports from the path only; Celery's own loader puts the working directory in front of it.

    It also ignores the module of CELERY_CONFIG_MODULE: fanout's settings are the only ones.
    """

    def import_from_cwd(self, module: str, imp: Any = None, package: str | None = None) -> Any:
        """Import a module from the path, despite the name."""
        return (imp or importlib.import_module)(module, package=package)

    def read_configuration(self, env: str = "") -> dict[str, Any]:
        """Return no configuration."""
        del env
        return {}
