"""Documents as text: PDFs page by page, notebooks cell by cell, pages of the web as Markdown."""

from __future__ import annotations

import sys
from pathlib import Path

from ...bounded_process import ProcessBounds
from ...turns import OwnerTurns, TooManyWaiting
from ..backends.bounded_run import run_bounded
from ..failures import ToolMistake
from . import text_program

MAX_DOCUMENT_BYTES = 20 * 1024**2
"""The largest document that is converted to text."""

CONVERSION_SECONDS = 60.0
"""How long a conversion may take on a busy machine, where it leaves the processor to others."""

CONVERSION_CPU_SECONDS = 20
"""The processor time of a conversion: about a thousand pages of a PDF."""

CONVERSION_MEMORY_BYTES = 1024**3
"""The memory of the process: far more than a parser of a valid document needs."""

AT_ONCE = 4
"""Conversions in one worker: together they take no more memory than a large job."""

AT_ONCE_OF_OWNER = 2
"""The most conversions at once for the jobs of one owner."""

WAITING_OF_OWNER = 64
"""Conversions for the jobs of one owner that wait for a turn: more than agents ask for at once."""

_MAX_TEXT_BYTES = 5 * text_program.MAX_CHARACTERS
"""UTF-8 has up to four bytes a character, and each page has a heading."""

_turns = OwnerTurns(
    at_once=AT_ONCE, of_one_owner=AT_ONCE_OF_OWNER, waiting_of_one_owner=WAITING_OF_OWNER
)


async def text_of_pdf(path: str, data: bytes) -> str:
    """Return the text of a PDF.

    Args:
        path: For the message.
        data: The file's bytes.

    Raises:
        ToolMistake: It cannot be read.
    """
    code, text = await _converted(path, text_program.PDF, data)
    if code == text_program.ENCRYPTED:
        raise ToolMistake(f"{path} is a PDF that needs a password.")
    if code != 0:
        raise ToolMistake(f"{path} cannot be read as a PDF: it is damaged, or {_too_much()}.")
    return text


async def text_of_notebook(path: str, data: bytes) -> str:
    """Return the cells of a notebook with the text of their outputs.

    Args:
        path: For the message.
        data: The file's bytes.

    Raises:
        ToolMistake: It is no notebook of format 4.
    """
    code, text = await _converted(path, text_program.NOTEBOOK, data)
    if code == text_program.NOT_OF_KIND:
        raise ToolMistake(f"{path} is not a notebook of format 4.")
    if code != 0:
        raise ToolMistake(f"{path} cannot be shown as a notebook: it {_too_much()}.")
    return text


async def text_of_html(url: str, page: str) -> str:
    """Return what a page says, as Markdown.

    Args:
        url: For the message.
        page: The page.

    Raises:
        ToolMistake: It cannot be read.
    """
    code, text = await _converted(url, text_program.HTML, page.encode(errors="replace"))
    if code == text_program.NOT_OF_KIND:
        raise ToolMistake(f"{url} cannot be read as HTML.")
    if code != 0:
        raise ToolMistake(f"{url} cannot be converted to text: it {_too_much()}.")
    return text


def _too_much() -> str:
    return f"takes more than {CONVERSION_CPU_SECONDS} seconds or 1 GiB of memory"


async def _converted(name: str, kind: str, data: bytes) -> tuple[int, str]:
    """Convert a document in a process with limits; return its exit code and the text.

    Raises:
        ToolMistake: Too many conversions for this owner wait.
    """
    bounds = ProcessBounds(
        memory_bytes=CONVERSION_MEMORY_BYTES, cpu_seconds=CONVERSION_CPU_SECONDS, yields=True
    )
    program = str(Path(text_program.__file__))
    try:
        async with _turns.turn():
            ended = await run_bounded(
                [sys.executable, "-B", "-I", program, kind],
                bounds,
                env={},
                stdin=data,
                seconds=CONVERSION_SECONDS,
                max_output_bytes=_MAX_TEXT_BYTES,
            )
    except TooManyWaiting:
        raise ToolMistake(f"Too many documents are being read: read {name} later.") from None
    code = ended.exit_code
    return (code or -1) if ended.truncated or ended.timed_out else code, ended.text
