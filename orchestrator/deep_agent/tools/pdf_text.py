"""A program that writes the text of the PDF on its standard input, page by page.

PDFs are parsed in a process of their own, with little time and memory: they may be hostile. It
imports nothing of ours, since it is started by its path, without our packages.
"""

from __future__ import annotations

import io
import logging
import resource
import sys

MAX_MEMORY_BYTES = 1024**3
"""Of the process: far more than a parser of an honest file of this size needs."""

MAX_SECONDS = 20
"""Of processor time: about a thousand pages."""

MAX_PAGES = 1_000
"""More are not shown; an agent reads no longer text."""

MAX_CHARACTERS = 4_000_000
"""Of the text: as much as the longest books have."""

ENCRYPTED = 3
"""The exit code for a file that needs a password."""


def main() -> int:
    """Write the text; return the exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pypdf  # noqa: PLC0415 - after the limits, and never in a process of ours

    logging.disable(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    if reader.is_encrypted and not reader.decrypt(""):
        return ENCRYPTED
    pages, left = len(reader.pages), MAX_CHARACTERS
    for number in range(1, min(pages, MAX_PAGES) + 1):
        text = (reader.pages[number - 1].extract_text() or "(no text on this page)")[:left]
        left -= len(text)
        page = f"--- page {number} of {pages} ---\n{text.rstrip()}\n"
        sys.stdout.buffer.write(page.encode(errors="replace"))
        if not left:
            break
    if not left or pages > MAX_PAGES:
        sys.stdout.buffer.write(b"--- the rest is left out ---\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
