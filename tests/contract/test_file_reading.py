"""What S2 says of `read_file`, and what it leaves open; on every backend."""

import base64

import pytest

from fanout.orchestrator.deep_agent.backends.protocol import Shell
from fanout.orchestrator.deep_agent.tools import files as files_module
from fanout.orchestrator.deep_agent.tools.files import MAX_RESULT_CHARACTERS
from fanout.orchestrator.deep_agent.tools.images import MAX_IMAGE_BYTES
from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")

PNG = b"\x89PNG\r\n\x1a\n\0"
JPEG = b"\xff\xd8\xff\xe0\0"


async def test_a_written_file_is_read_back_with_cat_n_line_numbers(tools: Tools) -> None:
    assert await tools(
        "write_file", file_path=tools.at("src/a.py"), content="import os\nimport sys\n"
    ) == {
        "status": "success",
        "path": tools.at("src/a.py"),
    }
    assert await tools("read_file", file_path=tools.at("src/a.py")) == {
        "status": "success",
        "content": "     1\timport os\n     2\timport sys",
    }


async def test_reading_goes_on_where_the_trailer_says(tools: Tools) -> None:
    await tools.put(tools.at("long"), "".join(f"line {n}\n" for n in range(2150)))
    first = (await tools.ok("read_file", file_path=tools.at("long")))["content"]
    assert first.endswith("\n... (150 more lines. Use offset=2000 to continue reading)")
    rest = (await tools.ok("read_file", file_path=tools.at("long"), offset=2000))["content"]
    assert rest.startswith("  2001\tline 2000\n")
    assert rest.endswith("  2150\tline 2149")


async def test_a_line_over_5000_characters_is_chunked_with_continuation_markers(
    tools: Tools,
) -> None:
    await tools.put(tools.at("wide"), "a\n" + "x" * 12_000 + "\nb")
    lines = (await tools.ok("read_file", file_path=tools.at("wide")))["content"].split("\n")
    assert [line.partition("\t")[0].strip() for line in lines] == ["1", "2", "2.1", "2.2", "3"]
    assert [len(line.partition("\t")[2]) for line in lines] == [1, 5000, 5000, 2000, 1]


async def test_a_read_is_capped_in_characters_and_can_be_resumed_to_the_end(tools: Tools) -> None:
    await tools.put(tools.at("big"), "".join(f"{n:05d}" + "y" * 995 + "\n" for n in range(500)))
    seen, offset = [], 0
    while True:
        content = (await tools.ok("read_file", file_path=tools.at("big"), offset=offset))["content"]
        assert len(content) <= MAX_RESULT_CHARACTERS + 200
        rows = content.split("\n")
        seen += [row.split("\t")[1][:5] for row in rows if "\t" in row]
        if "Use offset=" not in rows[-1]:
            break
        offset = int(rows[-1].split("offset=")[1].split(" ")[0])
    assert seen == [f"{n:05d}" for n in range(500)]


async def test_one_huge_line_is_cut_and_said_to_be(tools: Tools) -> None:
    await tools.put(tools.at("min.js"), "z" * 1_000_000 + "\nnext\n")
    content = (await tools.ok("read_file", file_path=tools.at("min.js")))["content"]
    assert len(content) <= MAX_RESULT_CHARACTERS + 300
    assert "line 1 is cut here" in content
    assert "offset=1 to continue" in content


async def test_empty_files_and_bad_windows_are_told_apart(tools: Tools) -> None:
    await tools.put(tools.at("empty"), "")
    await tools.put(tools.at("two"), "a\nb\n")
    content = (await tools.ok("read_file", file_path=tools.at("empty")))["content"]
    assert content == "System reminder: File exists but has empty contents"
    assert "2 lines" in await tools.error("read_file", file_path=tools.at("two"), offset=2)
    assert "offset" in await tools.error("read_file", file_path=tools.at("two"), offset=-1)
    assert "limit" in await tools.error("read_file", file_path=tools.at("two"), limit=0)
    missing = await tools.error("read_file", file_path=tools.at("nonexistent.txt"))
    assert missing == f"Error: file not found: {tools.root}/nonexistent.txt"
    assert "directory" in await tools.error("read_file", file_path=tools.root)


async def test_binary_is_refused_and_other_encodings_are_shown_but_not_edited(tools: Tools) -> None:
    await tools.put(tools.at("bin"), b"\x7fELF\0\0")
    await tools.put(tools.at("latin"), "caf\xe9\n".encode("latin-1"))
    assert "binary" in await tools.error("read_file", file_path=tools.at("bin"))
    shown = await tools.ok("read_file", file_path=tools.at("latin"))
    assert shown["content"] == "     1\tcaf\N{REPLACEMENT CHARACTER}"
    assert "UTF-8" in shown["note"]
    assert "UTF-8" in await tools.error(
        "edit_file", file_path=tools.at("latin"), old_string="caf", new_string="x"
    )
    assert await tools.get(tools.at("latin")) == b"caf\xe9\n"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file above the limit on what is read as a whole, of 60,000 lines."""
    monkeypatch.setattr(files_module, "MAX_FILE_BYTES", 100_000)
    monkeypatch.setattr(files_module, "READ_BLOCK_BYTES", 30_000)
    return b"".join(b"line %d\n" % number for number in range(1, 60_001))


async def test_a_large_file_is_read_at_any_offset_and_limit(tools: Tools, large: bytes) -> None:
    await tools.put(tools.at("large"), large)

    async def rows(**window: int) -> list[str]:
        content = (await tools.ok("read_file", file_path=tools.at("large"), **window))["content"]
        return str(content).split("\n")

    first = await rows(limit=2)
    assert first == [
        "     1\tline 1",
        "     2\tline 2",
        "... (more follows. Use offset=2 to continue reading)",
    ]
    middle = await rows(offset=45_000, limit=3000)
    assert (middle[0], middle[2999]) == (" 45001\tline 45001", " 48000\tline 48000")
    assert await rows(offset=59_999) == [" 60000\tline 60000"]
    message = await tools.error("read_file", file_path=tools.at("large"), offset=60_000)
    assert "the file has 60000 lines" in message


async def test_a_huge_line_of_a_large_file_is_cut_and_the_lines_after_it_are_read(
    tools: Tools, large: bytes
) -> None:
    await tools.put(tools.at("large"), b"x" * 1_000_000 + b"\n" + b"y" * 600_000 + b"\nend\n")
    content = (await tools.ok("read_file", file_path=tools.at("large")))["content"]
    assert len(content) <= MAX_RESULT_CHARACTERS + 300
    assert "(line 1 is cut here: 925000 more characters in it)" in content
    end = await tools.ok("read_file", file_path=tools.at("large"), offset=2)
    assert end["content"] == "     3\tend"


async def test_a_large_file_is_not_edited_and_the_message_says_what_to_do(
    tools: Tools, large: bytes
) -> None:
    await tools.put(tools.at("large"), large)
    message = await tools.error(
        "edit_file", file_path=tools.at("large"), old_string="line 7\n", new_string="y"
    )
    assert "larger than" in message
    assert ("in the shell" if isinstance(tools.backend, Shell) else "smaller files") in message


async def test_an_edit_of_a_file_that_was_large_when_it_was_read_is_refused(
    tools: Tools, large: bytes
) -> None:
    await tools.put(tools.at("large"), large)
    await tools.ok("read_file", file_path=tools.at("large"), limit=1)
    await tools.put(tools.at("large"), b"line 1\n")
    message = await tools.error(
        "edit_file", file_path=tools.at("large"), old_string="line 1", new_string="y"
    )
    assert "changed since you read it" in message


async def test_reading_a_large_file_ends_with_its_time_and_says_how_far_it_came(
    tools: Tools, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tools.put(tools.at("large"), large)
    monkeypatch.setattr(files_module, "READ_SECONDS", 0.0)
    message = await tools.error("read_file", file_path=tools.at("large"), offset=59_000)
    assert "0 seconds to line" in message


async def test_a_file_over_ten_mebibytes_is_read_to_its_end_and_searched(tools: Tools) -> None:
    data = b"".join(b"%09d %s\n" % (number, b"x" * 90) for number in range(120_000))
    await tools.put(tools.at("log"), data + b"the needle\n")
    shown = await tools.ok("read_file", file_path=tools.at("log"), offset=120_000)
    assert shown["content"] == "120001\tthe needle"
    for where in (tools.at("log"), tools.root):
        hits = await tools.ok("grep", pattern="the needle", path=where, output_mode="content")
        assert hits["result"] == tools.at("log:120001:the needle")
    assert "No matches" in (await tools.ok("grep", pattern="no such text"))["result"]


async def test_a_text_that_is_too_large_is_not_written(tools: Tools, large: bytes) -> None:
    content = large.decode()
    assert "bytes" in await tools.error("write_file", file_path=tools.at("h"), content=content)


@pytest.mark.parametrize(
    ("name", "data", "media_type"),
    [
        ("a.png", PNG, "image/png"),
        ("A.PNG", PNG, "image/png"),
        ("a.jpg", JPEG, "image/jpeg"),
        ("a.jpeg", JPEG, "image/jpeg"),
        ("a.gif", b"GIF89a\0", "image/gif"),
        ("a.webp", b"RIFF\0\0\0\0WEBP", "image/webp"),
        (
            "wrongly.png",
            JPEG,
            "image/jpeg",
        ),  # a provider refuses media that are not what they are said to be
    ],
)
async def test_images_come_as_base64_with_their_media_type(
    tools: Tools, name: str, data: bytes, media_type: str
) -> None:
    await tools.put(tools.at(name), data)
    assert await tools("read_file", file_path=tools.at(name)) == {
        "status": "success",
        "content": {
            "type": "image",
            "media_type": media_type,
            "data": base64.b64encode(data).decode(),
        },
    }


async def test_what_only_has_an_images_name_is_read_as_what_it_is(tools: Tools) -> None:
    await tools.put(tools.at("pointer.png"), "version https://git-lfs.github.com/spec/v1\n")
    await tools.put(tools.at("junk.png"), b"junk\0")
    await tools.put(tools.at("empty.gif"), b"")
    shown = await tools.ok("read_file", file_path=tools.at("pointer.png"))
    assert shown["content"].startswith("     1\tversion")
    assert "binary" in await tools.error("read_file", file_path=tools.at("junk.png"))
    assert "empty" in (await tools.ok("read_file", file_path=tools.at("empty.gif")))["content"]


async def test_an_image_over_the_limit_is_refused(tools: Tools) -> None:
    await tools.put(tools.at("a.png"), b"x" * (MAX_IMAGE_BYTES + 1))
    assert "larger than" in await tools.error("read_file", file_path=tools.at("a.png"))


async def test_a_line_of_5000_characters_is_one_and_one_more_starts_a_chunk(tools: Tools) -> None:
    await tools.put(tools.at("wide"), "x" * 5000 + "\n" + "y" * 5001)
    lines = (await tools.ok("read_file", file_path=tools.at("wide")))["content"].split("\n")
    assert [line.partition("\t")[0] for line in lines] == ["     1", "     2", "   2.1"]


async def test_offset_and_limit_choose_lines_from_zero(tools: Tools) -> None:
    await tools.put(tools.at("f"), "a\nb\nc\nd\n")
    assert await tools("read_file", file_path=tools.at("f"), offset=1, limit=2) == {
        "status": "success",
        "content": "     2\tb\n     3\tc\n... (1 more lines. Use offset=3 to continue reading)",
    }


async def test_what_is_no_regular_file_is_refused_and_never_waited_for(shell: Tools) -> None:
    await shell.execute(command="mkfifo pipe; ln -s loop loop; ln -s nothing dangling")
    for name in ("pipe", "loop", "dangling"):
        error = await shell.error("read_file", file_path=shell.at(name))
        assert error.count(shell.at(name)) == 1  # a hint does not name it again
    assert await shell.error(
        "edit_file", file_path=shell.at("pipe"), old_string="a", new_string="b"
    )
    assert (await shell.ok("grep", pattern="x"))["result"] == "No matches found."
    listed = (await shell.ok("ls", path=shell.root))["entries"]
    assert [(entry["path"], entry["is_dir"]) for entry in listed] == [
        (shell.at(name), False) for name in ("dangling", "loop", "pipe")
    ]
