"""What S2 says of `glob` and `grep`, and what it leaves open; on every backend."""

from typing import Any

import pytest

from fanout.orchestrator.deep_agent.tools import search as search_module
from fanout.orchestrator.deep_agent.tools.files import MAX_RESULT_CHARACTERS
from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_glob_knows_globstar_braces_and_the_base_directory(tools: Tools) -> None:
    for name in (
        "a.txt",
        "src/a.ts",
        "src/b/c.ts",
        "src/b/d.js",
        "src/x/e.ts",
        ".hid/f.ts",
        ".git/g.ts",
    ):
        await tools.put(tools.at(f"{name}"), "x")
    visible = ["/src/a.ts", "/src/b/c.ts", "/src/x/e.ts"]
    assert await tools.found("**/*.ts", tools.root) == [*visible, "/.hid/f.ts"]
    assert await tools.found("*.txt", tools.root) == ["/a.txt"]
    assert await tools.found("*.ts", tools.root) == []
    assert await tools.found("src/{b,x}/*.ts", tools.root) == ["/src/b/c.ts", "/src/x/e.ts"]
    assert await tools.found("**/*.{js,txt}", tools.root) == ["/a.txt", "/src/b/d.js"]
    assert await tools.found("*.ts", tools.at("src")) == ["/src/a.ts"]
    assert await tools.found(".hid/*", tools.root) == ["/.hid/f.ts"]
    assert await tools.found(tools.at("src/*.ts")) == ["/src/a.ts"]
    entry = (await tools.ok("glob", pattern="*.txt", path=tools.root))["entries"][0]
    assert set(entry) == {"path", "is_dir", "size", "modified_at"}
    assert entry["is_dir"] is False
    assert await tools("glob", pattern="*.none") == {"status": "success", "entries": []}


@pytest.mark.parametrize(
    "pattern", ["../*", "a/../../*", "", "{1..100000}", "x" * 1000, "~/*", "**/" * 9]
)
async def test_glob_patterns_that_escape_or_explode_are_refused(tools: Tools, pattern: str) -> None:
    await tools.put(tools.at("a"), "x")
    assert await tools.error("glob", pattern=pattern, path=tools.root)
    if pattern:  # an empty filter is what some models send for none
        assert await tools.error("grep", pattern="x", path=tools.root, glob=pattern)


async def test_glob_says_when_and_why_it_is_partial(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        await tools.put(tools.at(f"{n}"), "x")
    monkeypatch.setattr(search_module, "MAX_ENTRIES", 4)
    result = await tools.ok("glob", pattern="*", path=tools.root)
    assert len(result["entries"]) == 4
    assert result["truncated"] is True
    assert "6 files match" in result["note"]
    monkeypatch.setattr(search_module, "MAX_WALKED_FILES", 3)
    assert "partial" in (await tools.ok("glob", pattern="*", path=tools.root))["note"]


async def test_grep_is_literal_and_has_three_output_modes(tools: Tools) -> None:
    await tools.put(tools.at("a.py"), "x = 1\n    def hello():\nhello()\n")
    await tools.put(tools.at("sub/b.md"), "hello (a.*b) --pre=sh\r\n")

    async def grep(pattern: str, **more: Any) -> str:
        return str((await tools.ok("grep", pattern=pattern, **more))["result"])

    assert await grep("hello") == tools.at(f"a.py\n{tools.root}/sub/b.md")
    assert await grep("def", output_mode="content") == tools.at("a.py:2:    def hello():")
    assert await grep("hello", output_mode="count") == tools.at(
        f"a.py: 2\n{tools.root}/sub/b.md: 1"
    )
    assert await grep("(a.*b)", output_mode="content") == tools.at(
        "sub/b.md:1:hello (a.*b) --pre=sh"
    )
    assert await grep("--pre=sh") == tools.at("sub/b.md")
    assert await grep("hello", glob="*.md") == tools.at("sub/b.md")
    assert await grep("hello", glob="sub/*.md", path=tools.root) == tools.at("sub/b.md")
    assert await grep("hello", path=tools.at("sub")) == tools.at("sub/b.md")
    assert await grep("hello", path=tools.at("a.py"), output_mode="count") == tools.at("a.py: 2")
    assert await grep("h.llo") == "No matches found."
    assert "output_mode" in await tools.error("grep", pattern="x", output_mode="lines")
    assert "pattern" in await tools.error("grep", pattern="")
    assert "pattern" in await tools.error("grep", pattern="a\nb")
    assert await tools.error("grep", pattern="a", path=tools.at("none"))


async def test_grep_passes_over_binaries_and_git_and_is_bounded(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tools.put(tools.at("bin"), b"needle\0")
    await tools.put(tools.at(".git/x"), "needle")
    await tools.put(tools.at("many"), "needle " + "x" * 3000 + "\n")
    result = await tools.ok("grep", pattern="needle", output_mode="content")
    assert result["result"].count("needle") == 1
    assert len(result["result"]) < 1100
    await tools.put(tools.at("many2"), "needle line\n" * 9000)
    result = await tools.ok("grep", pattern="needle", output_mode="content")
    assert len(result["result"]) <= MAX_RESULT_CHARACTERS + 100
    monkeypatch.setattr(search_module, "MAX_GREP_HITS", 5)
    assert "partial" in (await tools.ok("grep", pattern="needle", output_mode="count"))["note"]


async def test_a_search_ends_with_its_time_and_says_so(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await tools.put(tools.at(f"d/{number}"), "needle\n")
    monkeypatch.setattr(search_module, "SEARCH_SECONDS", 0.0)
    result = await tools.ok("glob", pattern="**/*", path=tools.root)
    assert "0 seconds" in result["note"]
    assert result["truncated"] is True


async def test_ls_and_glob_follow_no_links_and_show_them_as_files(shell: Tools) -> None:
    await shell.put(shell.at("d/needle.txt"), "needle\n")
    await shell.execute(command="ln -s d link; ln -s / out; ln -s ../d d/again")
    assert await shell.found("**/*", shell.root) == ["/d/again", "/d/needle.txt", "/link", "/out"]
    assert (await shell.ok("grep", pattern="needle"))["result"] == shell.at("d/needle.txt")
    kinds = {
        entry["path"]: entry["is_dir"]
        for entry in (await shell.ok("ls", path=shell.root))["entries"]
    }
    assert kinds == {shell.at("d"): True, shell.at("link"): False, shell.at("out"): False}


async def test_a_result_of_grep_over_the_limit_is_cut_at_a_line_and_says_so(tools: Tools) -> None:
    await tools.put(
        tools.at("f"), "".join(f"needle {number} {'x' * 80}\n" for number in range(2000))
    )
    result = (await tools.ok("grep", pattern="needle", output_mode="content"))["result"]
    assert len(result) <= MAX_RESULT_CHARACTERS + 100
    *lines, note = result.split("\n")
    left_out = 2000 - len(lines)
    assert note == (
        f"... ({left_out} more rows. Use offset={len(lines)} to continue, or narrow the search)"
    )
    assert all(line.endswith("x" * 80) for line in lines)


@pytest.mark.parametrize(
    "pattern",
    [
        "./**/*.py",
        ".//src/*.py",
        "src//a.py",
        "src/./a.py",
        "src/",
        "./src/",
        "//src/a.py",
        "/src/*.py",
        "/**/a.py",
        "{root}/**/*.py",
        "{root}//src/./*.py",
        "{root}/src/",
    ],
)
async def test_a_pattern_finds_the_same_however_its_path_is_written(
    tools: Tools, pattern: str
) -> None:
    await tools.put(tools.at("src/a.py"), "needle")
    pattern = pattern.replace("{root}", tools.root)
    if not pattern.lstrip("/").startswith("src") or not pattern.startswith("/"):
        assert await tools.found(pattern, tools.root) == ["/src/a.py"]
    searched = await tools.ok("grep", pattern="needle", path=tools.root, glob=pattern)
    assert searched["result"] == tools.at("src/a.py")


async def test_an_absolute_pattern_of_a_missing_directory_is_an_error_with_a_hint(
    tools: Tools,
) -> None:
    await tools.put(tools.at("src/a.py"), "x")
    assert tools.at("src") in await tools.error("glob", pattern="/src/*.py")


async def test_hidden_files_are_found_by_every_search_and_come_last(tools: Tools) -> None:
    for name in ("z.yml", ".github/ci.yml", ".hidden.yml", ".git/config.yml", "a/.x/b.yml"):
        await tools.put(tools.at(name), "needle\n")
    expected = ["/z.yml", "/.github/ci.yml", "/.hidden.yml", "/a/.x/b.yml"]
    assert await tools.found("**/*.yml", tools.root) == expected
    for filter_ in ({}, {"glob": "*.yml"}, {"glob": "**/*.yml"}, {"path": tools.root}):
        lines = (await tools.ok("grep", pattern="needle", **filter_))["result"].split("\n")
        assert [line.removeprefix(tools.root) for line in lines] == expected
    shown = [entry["path"] for entry in (await tools.ok("ls", path=tools.root))["entries"]]
    assert set(shown) == {
        tools.at(name) for name in (".git", ".github", ".hidden.yml", "a", "z.yml")
    }
    searched = await tools.ok("grep", pattern="needle", path=tools.at(".git"))
    assert searched["result"] == tools.at(".git/config.yml")
    assert await tools.found("*", tools.at(".git")) == ["/.git/config.yml"]
    assert await tools.found(tools.at(".git/*")) == ["/.git/config.yml"]
    for search in ({"pattern": ".git/*"}, {"pattern": "**/.git/**"}):
        assert "as path" in await tools.error("glob", **search)
    assert "as path" in await tools.error("grep", pattern="needle", glob=".git/*")


async def test_a_hit_in_a_long_line_shows_the_match_with_its_surroundings(tools: Tools) -> None:
    await tools.put(
        tools.at("min.js"), "a\n" + "ü" * 30_000 + "before needle after" + "名" * 30_000 + "\nb\n"
    )
    await tools.put(tools.at("begin"), "needle" + "x" * 5_000)
    await tools.put(tools.at("end"), "x" * 5_000 + "needle\r\n")
    rows = (await tools.ok("grep", pattern="needle", output_mode="content"))["result"].split("\n")
    begin, end, middle = (row.removeprefix(tools.root) for row in rows)
    assert begin == "/begin:1:needle" + "x" * 500 + "[…]"
    assert end == "/end:1:[…]" + "x" * 500 + "needle"
    assert middle.startswith("/min.js:2:[…]ü")
    assert "üübefore needle after名" in middle
    assert middle.endswith("名[…]")
    assert "\ufffd" not in middle
    assert len(middle) < 600


async def test_every_result_can_be_paged_to_its_end(tools: Tools) -> None:
    names = [f"{number:02}" for number in range(11)]
    for name in names:
        await tools.put(tools.at(f"d/{name}"), "needle\n")
    for tool, args in (("ls", {"path": tools.at("d")}), ("glob", {"pattern": tools.at("d/*")})):
        paths: list[str] = []
        page = await tools.ok(tool, **args, limit=4)
        while "truncated" in page:
            paths += [entry["path"] for entry in page["entries"]]
            assert f"Use offset={len(paths)} to continue" in page["note"]
            page = await tools.ok(tool, **args, limit=4, offset=len(paths))
        paths += [entry["path"] for entry in page["entries"]]
        assert paths == [tools.at(f"d/{name}") for name in names]
        assert "past the end" in await tools.error(tool, **args, offset=11)
        assert "offset" in await tools.error(tool, **args, offset=-1)
        assert "limit" in await tools.error(tool, **args, limit=0)
    first = (await tools.ok("grep", pattern="needle", limit=10))["result"].split("\n")
    assert first[-1] == "... (1 more rows. Use offset=10 to continue, or narrow the search)"
    rest = (await tools.ok("grep", pattern="needle", offset=10))["result"]
    assert [*first[:-1], rest] == [tools.at(f"d/{name}") for name in names]


async def test_a_search_that_left_files_out_says_which_and_not_that_there_is_nothing(
    tools: Tools,
) -> None:
    await tools.put(tools.at("picture"), b"needle\0")
    await tools.put(tools.at("a.txt"), "text\n")
    found = await tools.ok("grep", pattern="needle")
    assert found["result"] == "No matches found in what was searched."
    assert found["note"].endswith(f": {tools.at('picture')}")
    assert await tools.ok("grep", pattern="needle", path=tools.at("a.txt")) == {
        "status": "success",
        "result": "No matches found.",
    }


async def test_a_match_is_found_once_wherever_it_lies_in_a_line_of_many_megabytes(
    tools: Tools,
) -> None:
    block = 2**20
    line = bytearray(b"x" * (3 * block))
    for at in (block - 3, 2 * block + 5):
        line[at : at + 6] = b"needle"
    await tools.put(tools.at("one"), bytes(line) + b"\nlast needle\n")
    result = await tools.ok("grep", pattern="needle", output_mode="count")
    assert result["result"] == f"{tools.at('one')}: 2"
    shown = await tools.ok("grep", pattern="needle", output_mode="content")
    assert [row.split(":")[1] for row in shown["result"].split("\n")] == ["1", "2"]
