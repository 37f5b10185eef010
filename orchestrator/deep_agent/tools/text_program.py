"""A program that writes the text of the document on its standard input: a PDF, HTML, a notebook.

Documents are parsed in a process of their own, with little time and memory: they may be hostile.
It imports nothing of ours, since it is started by its path, without our packages.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

MAX_PAGES = 1_000
"""More are not shown; an agent reads no longer text."""

MAX_CHARACTERS = 4_000_000
"""The longest text: as much as the longest books have."""

ENCRYPTED = 3
"""The exit code for a file that needs a password."""

NOT_OF_KIND = 4
"""The exit code for a file of another kind than is said."""

PDF, HTML, NOTEBOOK = "pdf", "html", "notebook"
"""What the first argument says."""


class _Encrypted(Exception):
    pass


class _NotOfKind(Exception):
    pass


def main(kind: str) -> int:
    """Write the text; return the exit code."""
    parts = {PDF: _pdf, HTML: _html, NOTEBOOK: _notebook}[kind]
    left = MAX_CHARACTERS
    try:
        for part in parts(sys.stdin.buffer.read()):
            text = part[:left]
            left -= len(text)
            sys.stdout.buffer.write(text.encode(errors="replace"))
            if not left:
                sys.stdout.buffer.write(b"\n--- the rest is left out ---\n")
                break
    except _Encrypted:
        return ENCRYPTED
    except _NotOfKind:
        return NOT_OF_KIND
    return 0


def _pdf(data: bytes) -> Iterator[str]:
    """Yield the pages with their numbers."""
    import pypdf  # noqa: PLC0415 - never in a process of ours

    logging.disable(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise _Encrypted
    pages = len(reader.pages)
    for number in range(1, min(pages, MAX_PAGES) + 1):
        text = reader.pages[number - 1].extract_text() or "(no text on this page)"
        yield f"--- page {number} of {pages} ---\n{text.rstrip()}\n"
    if pages > MAX_PAGES:
        yield "--- the rest is left out ---\n"


def _html(data: bytes) -> Iterator[str]:
    """Yield what a page says as Markdown; the text alone of one that is nested too deeply."""
    from bs4 import BeautifulSoup  # noqa: PLC0415 - never in a process of ours
    from bs4.exceptions import ParserRejectedMarkup  # noqa: PLC0415 - never in a process of ours
    from markdownify import MarkdownConverter  # noqa: PLC0415 - never in a process of ours

    try:
        page = BeautifulSoup(data.decode(errors="replace"), "html.parser")
    except ParserRejectedMarkup:
        raise _NotOfKind from None
    for hidden in page(["script", "style", "noscript", "template", "svg", "iframe"]):
        hidden.decompose()
    try:
        text = str(MarkdownConverter(heading_style="ATX").convert_soup(page))
    except RecursionError:
        text = page.get_text("\n")
    lines = (line.rstrip() for line in text.splitlines())
    yield "\n".join(line for line in lines if line)


def _notebook(data: bytes) -> Iterator[str]:
    """Yield the cells with the text of their outputs."""
    try:
        cells = json.loads(data)["cells"]
        for number, cell in enumerate(cells, start=1):
            yield _line(f"--- cell {number} of {len(cells)}: {cell['cell_type']} ---")
            yield _line(_joined(cell["source"]))
            for output in cell.get("outputs", ()):
                yield _line("--- output ---")
                yield _line(_output(output))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _NotOfKind from None


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


def _line(text: str) -> str:
    return text.removesuffix("\n") + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
