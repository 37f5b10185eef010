"""The blocks of each page run as they stand there, with services of the page's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.blocks import Block, blocks_of, pages
from tests.documentation.lab import Lab

PROGRAM = re.compile(r"# \w+\.py\n")
"""Begins a program of a guide, which `tests/integration/test_guides.py` runs."""


def running(page: Path) -> list[Block]:
    return [
        block
        for block in blocks_of(page)
        if (block.language in {"sh", "python"} or block.caption)
        and not block.not_run
        and not PROGRAM.match(block.text)
    ]


PAGES = [page for page in pages() if running(page)]


@pytest.fixture
def lab(tmp_path: Path):
    made = Lab(tmp_path)
    made.make()
    yield made
    made.stop()


@pytest.mark.representative
@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, lab):
    lab.run(running(page))


def test_most_pages_have_something_that_runs():
    assert {"README.md", "first-hour.md", "jobs.md", "library.md"} <= {page.name for page in PAGES}
