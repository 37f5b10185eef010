"""What S2 says of `write_file` and `edit_file`, and what it leaves open; on every backend."""

import asyncio
from typing import Any

import pytest

from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_write_never_overwrites(tools: Tools) -> None:
    await tools.put(tools.at("a"), "first")
    message = await tools.error("write_file", file_path=tools.at("a"), content="second")
    assert message == f"File already exists: {tools.root}/a. Use edit_file to modify."
    assert await tools.get(tools.at("a")) == b"first"
    assert "directory" in await tools.error("write_file", file_path=tools.root, content="x")
    assert await tools.error("write_file", file_path=tools.at("a/b"), content="x")
    assert await tools.error("write_file", file_path=tools.at("s"), content="\ud800")


async def test_edit_speaks_s2s_words(tools: Tools) -> None:
    await tools.put(tools.at("a"), "one two two\ntwo\n")

    async def edit(old: str, new: str, **more: Any) -> Any:
        return await tools(
            "edit_file", file_path=tools.at("a"), old_string=old, new_string=new, **more
        )

    assert (await edit("none", "x"))["error"] == "old_string not found in file content"
    assert (await edit("two", "two"))["error"] == "old_string and new_string are identical"
    assert (await edit("two", "x"))["error"] == (
        "old_string appears 3 times. Provide more context to make it unique, or set replace_all=True."
    )
    assert "empty" in (await edit("", "x"))["error"]
    assert "empty" in (await edit("", "x", replace_all=True))["error"]
    assert await edit("one", "1") == {"status": "success", "path": tools.at("a"), "occurrences": 1}
    assert (await edit("two", "2", replace_all=True))["occurrences"] == 3
    assert await tools.get(tools.at("a")) == b"1 2 2\n2\n"
    missing = await tools.error(
        "edit_file", file_path=tools.at("no"), old_string="a", new_string="b"
    )
    assert missing == f"Error: file not found: {tools.root}/no"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\r\nb\r\n", "a\nb", "x\ny", "x\r\ny\r\n"),
        ("a\r\nb\r\n", "a", "x\ny", "x\r\ny\r\nb\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "x\r\ny", "x\r\ny\r\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("a\nb\r\nc\n", "a", "x", "x\nb\r\nc\n"),
        ("a\nb\r\nc\nd", "a\nb\nc\n", "a\nX\nc\n", "a\nX\r\nc\nd"),
        ("a\nb\r\nc\nd", "a\nb\nc\n", "c\n", "c\nd"),
        ("a\nb\r\nc\nd", "b\nc", "b\nnew\nnew\nc", "a\nb\r\nnew\r\nnew\r\nc\nd"),
        ("a\r\nb\nc\r\n", "b", "b\nx", "a\r\nb\nx\nc\r\n"),
        ("a\r\nb\nc\r\n", "c", "c\nx", "a\r\nb\nc\r\nx\r\n"),
        ("a\r\n\nb\n", "a\n\nb", "a\nb", "a\r\nb\n"),
        # A byte order mark is not seen, and stays.
        ("\ufeffa\nb\n", "a\nb", "x", "\ufeffx\n"),
        ("\ufeffa\r\nb\r\n", "\ufeffa\n", "x\ny\n", "\ufeffx\r\ny\r\nb\r\n"),
        ("\ufeffa\nb", "\ufeffa", "\ufeffx", "\ufeffx\nb"),
        ("\ufeff", "", "x", "\ufeffx"),
        ("\ufeffa\n", "a", "b", "\ufeffb\n"),
        ("a", "a", "b", "b"),
    ],
)
async def test_edit_keeps_line_ends_as_they_are(
    tools: Tools, before: str, old: str, new: str, after: str
) -> None:
    await tools.put(tools.at("f"), before)
    await tools.ok("edit_file", file_path=tools.at("f"), old_string=old, new_string=new)
    assert (await tools.get(tools.at("f"))).decode() == after


async def test_a_byte_order_mark_is_not_shown_and_stays(tools: Tools) -> None:
    path = tools.at("f")
    await tools.put(path, "\ufeffa\r\nb\r\n")

    read = await tools.ok("read_file", file_path=path)
    await tools.ok("write_file", file_path=path, content="c\nd\n", overwrite=True)
    written = await tools.get(path)
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-c\n+e\n d\n*** End Patch"
    await tools.ok("apply_patch", input=patch)

    assert read["content"].split("\n")[0] == "     1\ta"
    assert written.decode() == "\ufeffc\r\nd\r\n"
    assert (await tools.get(path)).decode() == "\ufeffe\r\nd\r\n"


async def test_an_edit_is_refused_when_the_file_changed_since_this_agent_read_it(
    tools: Tools,
) -> None:
    await tools.put(tools.at("f"), "a b\n")
    await tools.ok("read_file", file_path=tools.at("f"))
    await tools.put(tools.at("f"), "a c\n")
    message = await tools.error(
        "edit_file", file_path=tools.at("f"), old_string="a", new_string="x"
    )
    assert "changed since you read it" in message
    await tools.ok("read_file", file_path=tools.at("f"))
    await tools.ok("edit_file", file_path=tools.at("f"), old_string="a", new_string="x")
    await tools.ok("edit_file", file_path=tools.at("f"), old_string="x", new_string="y")
    assert await tools.get(tools.at("f")) == b"y c\n"


async def test_parallel_edits_of_one_file_in_one_reply_all_arrive(tools: Tools) -> None:
    await tools.put(tools.at("f"), "".join(f"<{n}>\n" for n in range(20)))
    await asyncio.gather(
        *(
            tools.ok("edit_file", file_path=tools.at("f"), old_string=f"<{n}>", new_string=f"[{n}]")
            for n in range(20)
        )
    )
    assert (await tools.get(tools.at("f"))).decode() == "".join(f"[{n}]\n" for n in range(20))


async def test_of_many_agents_that_create_one_file_exactly_one_succeeds(tools: Tools) -> None:
    agents = [tools.another_agent() for _ in range(8)]
    results = await asyncio.gather(
        *(
            agent("write_file", file_path=tools.at("new/one"), content=f"{number}\n" * 1000)
            for number, agent in enumerate(agents)
        )
    )
    winners = [number for number, result in enumerate(results) if result["status"] == "success"]
    assert len(winners) == 1
    assert await tools.get(tools.at("new/one")) == f"{winners[0]}\n".encode() * 1000


async def test_an_edit_is_refused_when_another_agent_changed_the_file(tools: Tools) -> None:
    other = tools.another_agent()
    await tools.ok("write_file", file_path=tools.at("f"), content="a b\n")
    await other.ok("edit_file", file_path=tools.at("f"), old_string="b", new_string="c")
    message = await tools.error(
        "edit_file", file_path=tools.at("f"), old_string="a", new_string="x"
    )
    assert message == f"{tools.root}/f changed since you read it. Read it again before you edit it."
    assert await tools.get(tools.at("f")) == b"a c\n"


async def test_a_file_that_was_never_read_may_be_edited(tools: Tools) -> None:
    await tools.put(tools.at("f"), "a\nother\n")
    await tools.ok("edit_file", file_path=tools.at("f"), old_string="a", new_string="b")
    assert await tools.get(tools.at("f")) == b"b\nother\n"


async def test_an_edit_keeps_the_files_mode_and_goes_through_a_link(shell: Tools) -> None:
    await shell.execute(command="echo '#!/bin/sh' > real; chmod 750 real; ln -s real link")
    await shell.ok(
        "edit_file", file_path=shell.at("link"), old_string="/bin/sh", new_string="/bin/bash"
    )
    shown = await shell.execute(command="stat -c %a real; cat real; readlink link")
    assert shown["output"] == "750\n#!/bin/bash\nreal\n"


async def test_a_link_is_in_the_way_of_a_new_file_even_when_it_leads_nowhere(shell: Tools) -> None:
    await shell.execute(command="ln -s target link")
    assert shell.at("link") in await shell.error(
        "write_file", file_path=shell.at("link"), content="x"
    )
    assert (await shell.execute(command="readlink link"))["output"] == "target\n"
    assert (await shell.execute(command="test -e target"))["exit_code"] == 1


async def test_an_empty_file_is_filled_with_an_empty_old_string(tools: Tools) -> None:
    path = tools.at("f")
    await tools.ok("write_file", file_path=path, content="")
    message = await tools.error("write_file", file_path=path, content="x")
    assert message == (
        f"File already exists: {path}. Use edit_file to modify. It is empty: give an empty "
        "old_string."
    )
    await tools.ok("edit_file", file_path=path, old_string="", new_string="a\n")
    assert await tools.get(path) == b"a\n"
    message = await tools.error("edit_file", file_path=path, old_string="", new_string="b")
    assert "this file is not empty" in message
    assert await tools.get(path) == b"a\n"


async def test_a_file_is_overwritten_only_by_an_agent_that_saw_this_version(tools: Tools) -> None:
    path = tools.at("f")

    async def overwrite(agent: Tools, content: str) -> Any:
        return await agent("write_file", file_path=path, content=content, overwrite=True)

    assert (await overwrite(tools, "one\n"))["status"] == "success"
    assert (await overwrite(tools, "two\n"))["status"] == "success"
    other = tools.another_agent()
    assert "not read it" in (await overwrite(other, "three\n"))["error"]
    await other.ok("read_file", file_path=path)
    assert (await overwrite(other, "three\n"))["status"] == "success"
    assert "changed since you read it" in (await overwrite(tools, "four\n"))["error"]
    assert await tools.get(path) == b"three\n"
    assert "directory" in await tools.error(
        "write_file", file_path=tools.root, content="x", overwrite=True
    )


async def test_what_overwrites_a_file_keeps_its_line_ends(tools: Tools) -> None:
    for name, before, after in (
        ("crlf", "a\r\nb\r\n", "a\r\nc\r\nd\r\n"),
        ("mixed", "a\nb\r\n", "a\nc\r\nd\r\n"),
        ("lf", "a\nb\n", "a\nc\nd\n"),
    ):
        await tools.put(tools.at(name), before)
        await tools.ok("read_file", file_path=tools.at(name))
        await tools.ok("write_file", file_path=tools.at(name), content="a\nc\nd\n", overwrite=True)
        assert (await tools.get(tools.at(name))).decode() == after


async def test_several_edits_are_made_in_order_and_all_or_none(tools: Tools) -> None:
    path = tools.at("f")
    await tools.put(path, "one two\nthree\n")

    def edit(old: str, new: str, **more: Any) -> dict[str, Any]:
        return {"old_string": old, "new_string": new, **more}

    made = await tools.ok(
        "multi_edit",
        file_path=path,
        edits=[edit("one", "two"), edit("two", "2", replace_all=True), edit("three", "3")],
    )
    assert made == {"status": "success", "path": path, "occurrences": 4}
    assert await tools.get(path) == b"2 2\n3\n"
    message = await tools.error(
        "multi_edit", file_path=path, edits=[edit("3", "4"), edit("none", "x")]
    )
    assert message == (
        "Edit 2 of 2: old_string not found in file content. None of the edits was made."
    )
    assert await tools.get(path) == b"2 2\n3\n"
    for wrong in ([], [{"old_string": "3"}], [edit("3", "4", extra=1)], "3"):
        assert "edits" in await tools.error("multi_edit", file_path=path, edits=wrong)


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("     1\tdef f():\n     2\t    return 1", "line numbers"),
        ("def f():\n  return 1", "Lines 1 to 2 of the file differ in whitespace only"),
        ("\treturn 1", "Line 2 of the file differ"),
        ("def f():\\n    return 1", "escaped twice"),
        ("print(“x”)", "quotes"),
        ('print("xy")', "Line 3 of the file is similar"),
        ("def f():\n    return 1\nother()", "Lines 1 to 2 of the file begin like it; line 3"),
    ],
)
async def test_a_text_that_is_not_found_is_answered_with_what_is_nearly_it(
    tools: Tools, old: str, hint: str
) -> None:
    await tools.put(tools.at("f"), 'def f():\r\n    return 1\r\nprint("x")\r\n')
    message = await tools.error(
        "edit_file", file_path=tools.at("f"), old_string=old, new_string="y"
    )
    assert message.startswith("old_string not found in file content. ")
    assert hint in message
    assert len(message) < 250
