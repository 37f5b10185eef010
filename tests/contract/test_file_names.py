r"""Names that are no UTF-8, the same on every backend: shown escaped, and taken back as shown."""

from __future__ import annotations

import os

import pytest

from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")

LATIN, JAPANESE, BACKSLASH = r"caf\xe9.txt", r"d\xff/\x93\xfa.txt", r"caf\x5cxe9.txt"
NAMES = (LATIN, JAPANESE, BACKSLASH)


async def test_a_file_is_used_by_the_path_that_a_list_shows(tools: Tools) -> None:
    for name in NAMES:
        written = await tools.ok("write_file", file_path=tools.at(name), content=f"needle {name}\n")
        assert written["path"] == tools.at(name)

    listed = await tools.ok("ls", path=tools.root)
    assert {entry["path"] for entry in listed["entries"]} >= {tools.at(LATIN), tools.at(BACKSLASH)}
    globbed = await tools.ok("glob", pattern="**/*.txt")
    assert {entry["path"] for entry in globbed["entries"]} == set(map(tools.at, NAMES))
    one = await tools.ok("glob", pattern=f"**/{JAPANESE}")
    assert [entry["path"] for entry in one["entries"]] == [tools.at(JAPANESE)]
    hits = await tools.ok("grep", pattern="needle")
    assert set(hits["result"].split("\n")) == set(map(tools.at, NAMES))
    below = await tools.ok("grep", pattern="needle", path=tools.at(r"d\xff"), glob="*.txt")
    assert below["result"] == tools.at(JAPANESE)

    for name in NAMES:
        path = tools.at(name)
        assert "needle" in str(await tools.ok("read_file", file_path=path))
        await tools.ok("edit_file", file_path=path, old_string="needle", new_string="found")
        assert (await tools.get(path)).startswith(b"found")
    await tools.ok("delete_file", file_path=tools.at(LATIN))
    assert LATIN in await tools.error("read_file", file_path=tools.at(LATIN))
    assert await tools.get(tools.at(BACKSLASH)), "it has another name"


async def test_other_spellings_of_an_escape_are_the_same_file(tools: Tools) -> None:
    await tools.ok("write_file", file_path=tools.at(r"a\xE9"), content="x")
    await tools.ok("write_file", file_path=tools.at(r"\xc3\xa9"), content="y")

    assert await tools.get(tools.at(r"a\xe9")) == b"x"
    assert await tools.get(tools.at("é")) == b"y"


@pytest.mark.parametrize("name", [r"\x2e\x2e/up", r"a\x2fb", r"nul\x00"])
async def test_an_escape_hides_nothing_that_a_path_is_made_of(tools: Tools, name: str) -> None:
    written = await tools.ok("write_file", file_path=tools.at(name), content="x")

    assert written["path"] == tools.at(name.replace("\\x", r"\x5cx"))


async def test_the_bytes_on_the_disk_are_those_of_the_name(tools: Tools) -> None:
    if tools.folder is None:
        pytest.skip("its files are not on this machine")
    for name in NAMES:
        await tools.ok("write_file", file_path=tools.at(name), content="x")

    found = {os.fsencode(path.relative_to(tools.folder)) for path in tools.folder.rglob("*.txt")}
    if found:  # an overlay and a state keep their files to themselves
        assert found == {b"caf\xe9.txt", b"d\xff/\x93\xfa.txt", rb"caf\xe9.txt"}


async def test_a_name_that_a_command_made_is_shown_and_read(shell: Tools) -> None:
    await shell.backend.execute(
        f"cd {shell.root} && echo needle > \"$(printf 'r\\351sum\\351')\"", 20, 1000
    )

    listed = await shell.ok("ls", path=shell.root)
    assert [entry["path"] for entry in listed["entries"]] == [shell.at(r"r\xe9sum\xe9")]
    assert "needle" in str(await shell.ok("read_file", file_path=shell.at(r"r\xe9sum\xe9")))
