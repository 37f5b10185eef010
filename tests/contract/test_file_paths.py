"""What S2 says of paths, and of listing and deleting; on every backend."""

from datetime import UTC, datetime, timedelta

import pytest

from fanout.orchestrator.deep_agent.tools import search as search_module
from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_ls_lists_one_directory_sorted_with_kind_size_and_time(tools: Tools) -> None:
    await tools.put(tools.at("readme.md"), "x" * 142)
    await tools.put(tools.at("src/deep/a.py"), "a")
    entries = (await tools.ok("ls", path=tools.at("")))["entries"]
    assert [(entry["path"], entry["is_dir"], entry["size"]) for entry in entries] == [
        (tools.at("readme.md"), False, 142),
        (tools.at("src"), True, 0),
    ]
    assert entries[0]["modified_at"].startswith("20")
    assert entries[0]["modified_at"].endswith("+00:00")


async def test_ls_of_the_top_shows_the_way_to_the_files(tools: Tools) -> None:
    await tools.put(tools.at("a"), "x")
    top = await tools("ls", path="/")
    if top["status"] == "error":
        assert (
            top["error"] == "Permission denied: /"
        )  # a sandbox of this machine is all that its job sees
    else:
        assert f"/{tools.root.split('/')[1]}" in [entry["path"] for entry in top["entries"]]


async def test_ls_of_a_missing_path_is_an_error_and_so_is_ls_of_a_file(tools: Tools) -> None:
    await tools.put(tools.at("file"), "x")
    assert (
        await tools.error("ls", path=tools.at("nowhere"))
        == f"Error: file not found: {tools.root}/nowhere"
    )
    assert "not a directory" in await tools.error("ls", path=tools.at("file"))


@pytest.mark.parametrize(
    "path", ["../etc/passwd", "/../etc/passwd", "/a/../b", "~/x", "~root/x", "/a\\..\\b"]
)
async def test_traversal_is_refused_in_s2s_words_by_every_tool(tools: Tools, path: str) -> None:
    expected = f"Path traversal not allowed: {path}"
    assert await tools.error("ls", path=path) == expected
    assert await tools.error("read_file", file_path=path) == expected
    assert await tools.error("write_file", file_path=path, content="") == expected
    assert (
        await tools.error("edit_file", file_path=path, old_string="a", new_string="b") == expected
    )
    assert await tools.error("delete_file", file_path=path) == expected
    assert await tools.error("glob", pattern="*", path=path) == expected
    assert await tools.error("grep", pattern="x", path=path) == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("C:/x", "Windows"),
        ("c:\\x", "Windows"),
        ("", "empty"),
        ("  ", "empty"),
        ("/a\0b", "NUL"),
        ("/" + "x" * 300, "255 bytes"),
        ("/" + "a/" * 3000, "4095 characters"),
    ],
)
async def test_other_unusable_paths_are_rejected_with_the_reason(
    tools: Tools, path: str, reason: str
) -> None:
    assert reason in await tools.error("read_file", file_path=path)
    assert reason in await tools.error("write_file", file_path=path, content="x")


async def test_a_tilde_inside_a_name_and_dots_in_a_name_are_fine(tools: Tools) -> None:
    names = ("notes~.txt", "a..b", "...", "ünïcode 名.txt")
    for name in names:
        await tools.ok("write_file", file_path=tools.at(name), content=f"This is {name}.")

    for name in names:
        assert await tools.get(tools.at(name)) == f"This is {name}.".encode()
        assert f"This is {name}." in str(await tools.ok("read_file", file_path=tools.at(name)))
    listed = await tools.ok("ls", path=tools.root)
    assert sorted(entry["path"] for entry in listed["entries"]) == sorted(map(tools.at, names))


async def test_double_slashes_and_dots_are_normalised(tools: Tools) -> None:
    await tools.ok("write_file", file_path=f"/{tools.root}//./a.txt", content="x")
    assert await tools.get(tools.at("a.txt")) == b"x"


async def test_delete_takes_files_and_directories_but_never_the_workspace(tools: Tools) -> None:
    await tools.put(tools.at("d/a"), "x")
    await tools.put(tools.at("d/e/b"), "x")
    await tools.put(tools.at("keep"), "x")
    assert await tools.ok("delete_file", file_path=tools.at("d/a")) == {
        "status": "success",
        "path": tools.at("d/a"),
    }
    await tools.ok("delete_file", file_path=tools.at("d"))
    assert await tools.found("**/*") == ["/keep"]
    assert (
        await tools.error("delete_file", file_path=tools.at("d"))
        == f"Error: file not found: {tools.root}/d"
    )
    assert await tools.error("delete_file", file_path="/")
    await tools.ok("write_file", file_path=tools.at("d/a"), content="again")


async def test_ls_says_when_it_shows_only_the_first(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        await tools.put(tools.at(name), "x")
    monkeypatch.setattr(search_module, "MAX_ENTRIES", 3)
    result = await tools.ok("ls", path=tools.root)
    assert [entry["path"] for entry in result["entries"]] == [tools.at(name) for name in "abc"]
    assert result["truncated"] is True
    assert "4 entries" in result["note"]


async def test_times_have_a_zone_and_say_when_the_file_was_written(tools: Tools) -> None:
    await tools.put(tools.at("f"), "x")
    entry = (await tools.ok("ls", path=tools.root))["entries"][0]
    age = datetime.now(UTC) - datetime.fromisoformat(entry["modified_at"])
    assert timedelta(seconds=-5) < age < timedelta(minutes=2)


async def test_a_relative_path_is_below_the_files_in_every_tool(tools: Tools) -> None:
    root = tools.backend.search_root.rstrip("/")
    written = await tools.ok("write_file", file_path="src/a.py", content="needle\n")
    assert written["path"] == f"{root}/src/a.py"
    assert "needle" in (await tools.ok("read_file", file_path="./src/a.py"))["content"]
    edited = await tools.ok(
        "edit_file", file_path="src//a.py", old_string="needle", new_string="thread"
    )
    assert edited["path"] == f"{root}/src/a.py"
    for path in ("src", "./src/", f"{root}/src"):
        listed = (await tools.ok("ls", path=path))["entries"]
        assert [entry["path"] for entry in listed] == [f"{root}/src/a.py"]
    for path in (".", "./", "src", "src/a.py"):
        found = await tools.ok("grep", pattern="thread", path=path)
        assert found["result"] == f"{root}/src/a.py"
    assert (await tools.ok("glob", pattern="*.py", path="src"))["entries"]
    await tools.put(f"{root}/src/a.py", "changed by another\n")
    message = await tools.error(
        "edit_file", file_path="src/a.py", old_string="changed", new_string="x"
    )
    assert "changed since you read it" in message
    deleted = await tools.ok("delete_file", file_path="src/a.py")
    assert deleted["path"] == f"{root}/src/a.py"


async def test_paths_in_results_are_accepted_by_every_tool(tools: Tools) -> None:
    for name in ("a b", "x/~y", "-r", "ü/é", "C:/d", "[a]{b}*?", "#1", "%41"):
        await tools.put(tools.at(name), "needle\n")
    entries = (await tools.ok("glob", pattern="**/*"))["entries"]
    found = (await tools.ok("grep", pattern="needle"))["result"].split("\n")
    assert [entry["path"] for entry in entries] == found
    for path in found:
        assert "needle" in (await tools.ok("read_file", file_path=path))["content"]
        assert (await tools.ok("grep", pattern="needle", path=path))["result"] == path
        await tools.ok("edit_file", file_path=path, old_string="needle", new_string="done")
        relative = path.removeprefix(tools.backend.search_root.rstrip("/") + "/")
        await tools.ok("read_file", file_path=relative) if relative[:1] not in "~C" else None
        await tools.ok("delete_file", file_path=path)


async def test_a_missing_path_is_answered_with_existing_ones_only(tools: Tools) -> None:
    for name in ("src/deep/models.py", "src/util.py", "README.md"):
        await tools.put(tools.at(name), "x")
    root = tools.backend.search_root.rstrip("/")

    async def error(path: str) -> str:
        return await tools.error("read_file", file_path=path)

    at = tools.at
    assert await error(at("src/models.py")) == (
        f"Error: file not found: {at('src/models.py')}. Did you mean {at('src/deep/models.py')}?"
    )
    assert at("src/util.py") in await error(at("src/utils.py"))
    assert at("README.md") in await error(at("readme.md"))
    assert "Did you mean" not in await error(at("entirely/other.txt"))
    assert at("src/util.py") in await error("/src/util.py") or root == ""
    assert at("src/deep") in await tools.error("ls", path=at("deep"))
    assert at("src/util.py") in await tools.error("grep", pattern="x", path=at("util.py"))
    assert at("src/util.py") in await tools.error(
        "edit_file", file_path=at("src/utils.py"), old_string="x", new_string="y"
    )
