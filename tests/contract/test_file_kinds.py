"""What `read_file` shows of files that are no text, on every backend."""

import base64
from functools import partial

import pytest

from fanout.orchestrator.deep_agent.models.facts import takes_inline
from fanout.orchestrator.deep_agent.tools.filesystem import FilesystemTools
from fanout.orchestrator.deep_agent.tools.images import MAX_IMAGE_BYTES
from tests.contract.conftest import ON_TWO_BACKENDS
from tests.contract.file_tools import Tools
from tests.documents import notebook, pdf

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAVE = b"RIFF\x24\0\0\0WAVEfmt "


def with_model(tools: Tools, model: str) -> Tools:
    """The same files for an agent with this model."""
    shown = FilesystemTools(lambda _: tools.backend, takes=partial(takes_inline, model))
    tools.by_name = {tool.name: tool for tool in shown.tools()}
    return tools


@pytest.mark.parametrize("tools", ON_TWO_BACKENDS, indirect=True)
async def test_a_pdf_is_shown_as_text_by_page_where_the_model_takes_none(tools: Tools) -> None:
    await tools.put(tools.at("a.pdf"), pdf("first words", "second words"))
    shown = await tools.ok("read_file", file_path=tools.at("a.pdf"))
    assert shown["content"].split("\n") == [
        "     1\t--- page 1 of 2 ---",
        "     2\tfirst words",
        "     3\t--- page 2 of 2 ---",
        "     4\tsecond words",
    ]
    rest = await tools.ok("read_file", file_path=tools.at("a.pdf"), offset=3)
    assert rest["content"] == "     4\tsecond words"


@pytest.mark.parametrize("tools", ON_TWO_BACKENDS, indirect=True)
async def test_a_pdf_is_shown_as_it_is_where_the_model_takes_it_and_as_text_from_an_offset(
    tools: Tools,
) -> None:
    data = pdf("words")
    await tools.put(tools.at("a.pdf"), data)
    shown = await with_model(tools, "gemini-2.5-flash").ok("read_file", file_path=tools.at("a.pdf"))
    assert shown["content"] == {
        "type": "document",
        "media_type": "application/pdf",
        "data": base64.b64encode(data).decode(),
    }
    text = await tools.ok("read_file", file_path=tools.at("a.pdf"), offset=1)
    assert text["content"] == "     2\twords"


@pytest.mark.parametrize("tools", ON_TWO_BACKENDS, indirect=True)
async def test_a_damaged_pdf_is_told_in_words(tools: Tools) -> None:
    await tools.put(tools.at("a.pdf"), b"%PDF-1.7\n\0 nothing that follows is one")
    assert "damaged" in await tools.error("read_file", file_path=tools.at("a.pdf"))


async def test_a_notebook_is_shown_as_its_cells_with_the_text_of_their_outputs(
    tools: Tools,
) -> None:
    await tools.put(tools.at("a.ipynb"), notebook())
    shown = await tools.ok("read_file", file_path=tools.at("a.ipynb"))
    assert [row.partition("\t")[2] for row in shown["content"].split("\n")] == [
        "--- cell 1 of 2: markdown ---",
        "# Title",
        "words",
        "--- cell 2 of 2: code ---",
        "print(42)",
        "--- output ---",
        "42",
        "--- output ---",
        "<Figure>",
        "(image/png, not shown)",
        "--- output ---",
        "ValueError: no",
    ]
    await tools.put(tools.at("b.ipynb"), "[" * 100_000)
    assert "not a notebook" in await tools.error("read_file", file_path=tools.at("b.ipynb"))


@pytest.mark.parametrize(
    ("name", "data", "media_type", "kind"),
    [
        ("a.wav", WAVE, "audio/wav", "audio"),
        ("a.mp3", b"ID3\x04\0", "audio/mpeg", "audio"),
        ("a.mp4", b"\0\0\0\x18ftypisom", "video/mp4", "video"),
    ],
)
async def test_sounds_and_films_are_for_models_that_take_them(
    tools: Tools, name: str, data: bytes, media_type: str, kind: str
) -> None:
    await tools.put(tools.at(name), data)
    message = await tools.error("read_file", file_path=tools.at(name))
    assert f"is {media_type}, which this model cannot" in message
    shown = await with_model(tools, "gemini-2.5-flash").ok("read_file", file_path=tools.at(name))
    assert (shown["content"]["type"], shown["content"]["media_type"]) == (kind, media_type)


async def test_an_image_that_is_too_large_is_said_to_need_a_smaller_one(tools: Tools) -> None:
    await tools.put(tools.at("a.png"), b"\x89PNG\r\n\x1a\n" + b"x" * MAX_IMAGE_BYTES)
    message = await tools.error("read_file", file_path=tools.at("a.png"))
    assert "smaller one" in message
    assert "grep" not in message
