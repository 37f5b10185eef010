"""Sphinx builds the documentation from the Markdown here: `make docs`."""

import sys
import warnings
from pathlib import Path
from typing import Any

from fanout.orchestrator.version import VERSION

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))  # for `docs.generate`

project = "fanout"
copyright = "the authors of fanout"  # noqa: A001 - Sphinx's name
release = VERSION

extensions = ["myst_parser"]
exclude_patterns = ["README.md", "generate", "images", "_build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nitpicky = True
suppress_warnings = ["myst.header"]  # two pages are included below a heading of their own

html_theme = "furo"
html_title = f"fanout {release}"
html_show_sphinx = False
html_static_path: list[str] = []


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx looks for its sources."""
    del app
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ADK's, about classes that it may change
        from docs.generate.pages import write  # noqa: PLC0415 - after the path is set

        write(FOLDER / "reference")
