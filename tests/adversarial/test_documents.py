"""PDFs that are made to take a reader's time or memory."""

import zlib

import pytest

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools import documents
from fanout.orchestrator.deep_agent.tools.documents import text_of_pdf
from tests.documents import pdf


@pytest.mark.slow
async def test_a_page_that_unpacks_to_gigabytes_takes_no_memory_of_ours() -> None:
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(b" " * 2**20) for _ in range(2048)) + packer.flush()

    with pytest.raises(ToolMistake, match="damaged, or takes more"):
        await text_of_pdf("/a.pdf", pdf("x", compressed=bomb))


async def test_a_file_that_takes_too_long_ends_with_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "CONVERSION_SECONDS", 0.01)

    with pytest.raises(ToolMistake, match="damaged, or takes more"):
        await text_of_pdf("/a.pdf", pdf("words"))
