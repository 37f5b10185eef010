"""Patches in the V4A format, on every backend."""

from typing import Any

import pytest

from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")

APP = "import os\n\n\ndef greet(name):\n    print('hi', name)\n\n\ndef main():\n    greet('you')\n"


async def patch(tools: Tools, *lines: str) -> Any:
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return await tools("apply_patch", input=text.replace("ROOT", tools.root))


async def test_one_patch_adds_updates_moves_and_deletes_files(tools: Tools) -> None:
    await tools.put(tools.at("app.py"), APP)
    await tools.put(tools.at("old name.txt"), "one\ntwo\n")
    await tools.put(tools.at("gone"), "x")
    done = await patch(
        tools,
        "*** Add File: ROOT/pkg/new.py",
        "+VALUE = 1",
        "+",
        "*** Update File: ROOT/app.py",
        "@@ def greet(name):",
        "-    print('hi', name)",
        "+    print(f'hi {name}')",
        "@@ def main():",
        "     greet('you')",
        "+    greet('me')",
        "*** End of File",
        "*** Update File: ROOT/old name.txt",
        "*** Move to: ROOT/moved/new name.txt",
        "@@",
        "-two",
        "+three",
        "*** Delete File: ROOT/gone",
    )
    assert done == {
        "status": "success",
        "files": [
            {"path": tools.at("pkg/new.py"), "change": "added"},
            {"path": tools.at("app.py"), "change": "modified"},
            {"path": tools.at("moved/new name.txt"), "change": "added"},
            {"path": tools.at("old name.txt"), "change": "deleted"},
            {"path": tools.at("gone"), "change": "deleted"},
        ],
    }
    assert await tools.get(tools.at("pkg/new.py")) == b"VALUE = 1\n\n"
    changed = APP.replace("'hi', name", "f'hi {name}'") + "    greet('me')\n"
    assert (await tools.get(tools.at("app.py"))).decode() == changed
    assert await tools.get(tools.at("moved/new name.txt")) == b"one\nthree\n"
    assert await tools.found("**/*", tools.root) == [
        "/app.py",
        "/moved/new name.txt",
        "/pkg/new.py",
    ]


UPDATE = ("*** Update File: ROOT/app.py", "@@", "-import os", "+import sys")


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (("*** Update File: ROOT/b", "@@", "-nowhere", "+x"), "Hunk 1 of "),
        (("*** Update File: ROOT/b", "@@ class X", "-b", "+x"), "no line 'class X'"),
        (("*** Update File: ROOT/twice", "@@", "-b", "+x"), "several places (line 1, 3)"),
        (("*** Update File: ROOT/b", "@@", "-  b1", "+x", "@@", "-b", "+y"), "Hunk 2 of"),
        (("*** Update File: ROOT/missing", "@@", "-b", "+x"), "file not found"),
        (("*** Update File: ROOT/b",), "changes nothing"),
        (("*** Update File: ROOT/b", "@@", " b"), "changes nothing"),
        (("*** Update File: ROOT/b", "*** Move to: ROOT/twice"), "already exists"),
        (("*** Add File: ROOT/b", "+x"), "already exists"),
        (("*** Add File: ROOT/new", "x"), "begins with +"),
        (("*** Delete File: ROOT/missing",), "file not found"),
        (("*** Delete File: ROOT/d",), "directory"),
        (("*** Delete File: ROOT/app.py",), "twice"),
        (("*** Update File: ../b", "@@", "-b", "+x"), "Path traversal not allowed"),
        (("*** Update File: ROOT/b", "@@", "-b", "+x", "what"), "Line 10 of the patch, 'what'"),
        (("*** Update File: ROOT/binary", "@@", "-b", "+x"), "UTF-8"),
    ],
)
async def test_a_patch_of_which_a_part_does_not_fit_changes_nothing(
    tools: Tools, section: tuple[str, ...], reason: str
) -> None:
    files = {"app.py": APP, "b": "a\n  b1\nc\n", "twice": "b\na\nb\n", "d/x": "x"}
    for name, text in files.items():
        await tools.put(tools.at(name), text)
    await tools.put(tools.at("binary"), b"b\xff\n")
    result = await patch(tools, *UPDATE, *section)
    assert result["status"] == "error"
    assert reason in result["error"]
    for name, text in files.items():
        assert (await tools.get(tools.at(name))).decode() == text
    assert await tools.found("**/new", tools.root) == []


async def test_a_patch_is_undone_when_a_write_fails(tools: Tools) -> None:
    await tools.put(tools.at("app.py"), APP)
    await tools.put(tools.at("file"), "x")
    result = await patch(
        tools, *UPDATE, "*** Add File: ROOT/new", "+x", "*** Add File: ROOT/file/below", "+x"
    )
    assert result["status"] == "error"
    assert result["error"].endswith("Nothing was changed.")
    assert (await tools.get(tools.at("app.py"))).decode() == APP
    assert await tools.found("*", tools.root) == ["/app.py", "/file"]


async def test_a_patch_is_refused_when_a_file_changed_since_this_agent_read_it(
    tools: Tools,
) -> None:
    await tools.put(tools.at("app.py"), APP)
    await tools.ok("read_file", file_path=tools.at("app.py"))
    await tools.put(tools.at("app.py"), APP + "# more\n")
    assert "changed since you read it" in (await patch(tools, *UPDATE))["error"]
    await tools.ok("read_file", file_path=tools.at("app.py"))
    assert (await patch(tools, *UPDATE))["status"] == "success"
    await tools.ok("edit_file", file_path=tools.at("app.py"), old_string="sys", new_string="re")


async def test_a_patch_may_be_wrapped_in_a_command_and_name_relative_paths(tools: Tools) -> None:
    wrapped = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a/b\n+x\n*** End Patch\nEOF"
    await tools.ok("apply_patch", input=wrapped)
    assert await tools.get(f"{tools.backend.search_root.rstrip('/')}/a/b") == b"x\n"
    for wrong in (
        "",
        "x",
        "*** Begin Patch\n*** Add File: c\n+x",
        "*** Begin Patch\n*** End Patch",
    ):
        assert await tools.error("apply_patch", input=wrong)
