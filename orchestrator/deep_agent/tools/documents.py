"""Documents as text: PDFs page by page, notebooks cell by cell."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from fanout.orchestrator.deep_agent.backends import processes
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools import pdf_text

MAX_DOCUMENT_BYTES = 20 * 1024**2
"""The largest document that is converted to text."""

PDF_SECONDS = 30.0
"""How long the conversion of a PDF may take on a busy machine."""

_MAX_TEXT_BYTES = 5 * pdf_text.MAX_CHARACTERS
"""Of a converted PDF: UTF-8 has up to four bytes a character, and each page has a heading."""


async def text_of_pdf(path: str, data: bytes) -> str:
    """Return the text of a PDF; it is parsed in a process with limits on time and memory.

    Args:
        path: For the message.
        data: The file's bytes.

    Raises:
        ToolMistake: It cannot be read.
    """
    launch = processes.Launch(
        argv=[sys.executable, "-I", str(Path(pdf_text.__file__))],
        env={},
        stdin=data,
        timeout_seconds=PDF_SECONDS,
        max_output_bytes=_MAX_TEXT_BYTES,
        merge_stderr=False,
    )
    ended = await processes.run(launch)
    if ended.exit_code == pdf_text.ENCRYPTED:
        raise ToolMistake(f"{path} is a PDF that needs a password.")
    if ended.exit_code != 0 or ended.truncated:
        raise ToolMistake(
            f"{path} cannot be read as a PDF: it is damaged, or takes more than "
            f"{pdf_text.MAX_SECONDS} seconds or {pdf_text.MAX_MEMORY_BYTES} bytes of memory."
        )
    return ended.text


async def text_of_notebook(path: str, data: bytes) -> str:
    """Return the cells of a notebook with the text of their outputs.

    Args:
        path: For the message.
        data: The file's bytes.

    Raises:
        ToolMistake: It is no notebook of format 4.
    """
    try:
        return await asyncio.to_thread(_notebook, data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ToolMistake(f"{path} is not a notebook of format 4.") from None


def _notebook(data: bytes) -> str:
    cells = json.loads(data)["cells"]
    parts = []
    for number, cell in enumerate(cells, start=1):
        parts.append(f"--- cell {number} of {len(cells)}: {cell['cell_type']} ---")
        parts.append(_joined(cell["source"]))
        for output in cell.get("outputs", ()):
            parts += ["--- output ---", _output(output)]
    return "".join(part.removesuffix("\n") + "\n" for part in parts)


def _output(output: dict[str, Any]) -> str:
    """Return an output's text, or what kind of data it is."""
    if output["output_type"] == "stream":
        return _joined(output["text"])
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    shown = output["data"]
    if "text/plain" not in shown:
        return f"({', '.join(sorted(shown))}, not shown)"
    others = ", ".join(sorted(shown.keys() - {"text/plain"}))
    return _joined(shown["text/plain"]) + (f"\n({others}, not shown)" if others else "")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
