"""What the file tools promise (S2 and what it leaves open), on every backend."""

import asyncio
import base64
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.deep_agent import files as files_module
from orchestrator.deep_agent.backends.directory import DirectoryBackend
from orchestrator.deep_agent.backends.protocol import Backend, Shell
from orchestrator.deep_agent.backends.state import DictState, StateBackend
from orchestrator.deep_agent.execute_tool import ExecuteTool
from orchestrator.deep_agent.filesystem_tools import MAX_IMAGE_BYTES, FilesystemTools
from orchestrator.deep_agent.text import MAX_RESULT_CHARACTERS
from orchestrator.deep_agent.tool import MethodTool
from orchestrator.jobs.spec import Limits, new_job_id
from workers.sandbox.backend import SandboxBackend
from workers.sandbox.local import LocalProvider
from workers.sandbox.protocol import SandboxSpec

W = "/workspace"

SPEC = SandboxSpec(
    job_id=new_job_id(),
    attempt=1,
    image="none",
    limits=Limits(timeout_seconds=60, cpus=1, memory_bytes=2**30, pids=100, disk_bytes=2**30, network="none"),
)


async def no_snapshot(blob_id: str) -> Path:
    raise AssertionError(blob_id)


class Context:
    """As much of ADK's ToolContext as the file tools use."""

    def __init__(self) -> None:
        self.state = DictState()


class Tools:
    """Calls tools as ADK does: by name, with the model's arguments."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.context = Context()
        self._tools = {tool.name: tool for tool in FilesystemTools(lambda _: backend).tools()}

    async def __call__(self, name: str, **args: Any) -> Any:
        return await self._tools[name].run_async(args=args, tool_context=self.context)

    async def ok(self, name: str, **args: Any) -> Any:
        result = await self(name, **args)
        assert result["status"] == "success", result
        return result

    async def error(self, name: str, **args: Any) -> str:
        result = await self(name, **args)
        assert result["status"] == "error", result
        assert set(result) == {"status", "message"}
        return str(result["message"])

    async def put(self, path: str, data: bytes | str) -> None:
        """Something other than this agent's file tools writes a file."""
        await self.backend.write_bytes(path, data.encode() if isinstance(data, str) else data)

    async def get(self, path: str) -> bytes:
        return await self.backend.read_bytes(path, 2**30)

    async def found(self, pattern: str, path: str = "/") -> list[str]:
        result = await self.ok("glob", pattern=pattern, path=path)
        return [entry["path"].removeprefix(W) for entry in result["entries"]]


@pytest.fixture(params=["state", "directory", "sandbox"])
async def tools(request: pytest.FixtureRequest) -> AsyncIterator[Tools]:
    if request.param == "state":
        yield Tools(StateBackend(DictState()))
        return
    root = await asyncio.to_thread(lambda: Path(tempfile.mkdtemp()))
    try:
        if request.param == "directory":
            yield Tools(DirectoryBackend(root, mount=W))
            return
        provider = await asyncio.to_thread(LocalProvider, no_snapshot, root, "contract")
        async with provider.open(SPEC) as sandbox:
            yield Tools(SandboxBackend(sandbox))
    finally:
        await asyncio.to_thread(shutil.rmtree, root)


async def test_a_sandbox_also_executes_with_s2s_result(tools: Tools) -> None:
    backend = tools.backend
    if not isinstance(backend, Shell):
        pytest.skip("only a sandbox executes")
    tool = MethodTool(ExecuteTool(backend).execute)

    async def execute(**args: Any) -> Any:
        return await tool.run_async(args=args, tool_context=tools.context)  # type: ignore[arg-type]

    await tools.ok("write_file", file_path=f"{W}/a.txt", content="hi\n")
    assert await execute(command="cat a.txt; test -f a.txt && echo here") == {
        "status": "success",
        "output": "hi\nhere\n",
        "exit_code": 0,
        "truncated": False,
    }
    failed = await execute(command="no-such-command")
    assert (failed["status"], failed["exit_code"]) == ("error", 127)
    late = await execute(command="sleep 30", timeout_seconds=0.5)
    assert late == {
        "status": "error",
        "output": "Command timed out after 0.5s",
        "exit_code": -1,
        "truncated": False,
    }
    loud = await execute(command="head -c 300000 /dev/zero | tr '\\0' x")
    assert loud["truncated"] is True
    assert len(loud["output"]) < 101_000
    for wrong in (
        {"command": " "},
        {"command": "ls", "timeout_seconds": 0},
        {"command": "ls", "timeout_seconds": 9999},
    ):
        assert "message" in await execute(**wrong)
    await execute(command="echo changed > a.txt")
    assert "changed since" in await tools.error(
        "edit_file", file_path=f"{W}/a.txt", old_string="changed", new_string="x"
    )


async def test_a_written_file_is_read_back_with_cat_n_line_numbers(tools: Tools) -> None:
    assert await tools("write_file", file_path=f"{W}/src/a.py", content="import os\nimport sys\n") == {
        "status": "success",
        "path": f"{W}/src/a.py",
    }
    assert await tools("read_file", file_path=f"{W}/src/a.py") == {
        "status": "success",
        "content": "     1\timport os\n     2\timport sys",
    }


async def test_ls_lists_one_directory_sorted_with_kind_size_and_time(tools: Tools) -> None:
    await tools.put(f"{W}/readme.md", "x" * 142)
    await tools.put(f"{W}/src/deep/a.py", "a")
    entries = (await tools.ok("ls", path=f"{W}/"))["entries"]
    assert [(entry["path"], entry["is_dir"], entry["size"]) for entry in entries] == [
        (f"{W}/readme.md", False, 142),
        (f"{W}/src", True, 0),
    ]
    assert entries[0]["modified_at"].startswith("20")
    assert entries[0]["modified_at"].endswith("+00:00")
    if not isinstance(tools.backend, SandboxBackend):  # a sandbox shows its own root, or refuses to
        assert [entry["path"] for entry in (await tools.ok("ls", path="/"))["entries"]] == [W]


async def test_ls_of_a_missing_path_is_an_error_and_so_is_ls_of_a_file(tools: Tools) -> None:
    await tools.put(f"{W}/file", "x")
    assert await tools.error("ls", path=f"{W}/nowhere") == f"Error: file not found: {W}/nowhere"
    assert "not a directory" in await tools.error("ls", path=f"{W}/file")


@pytest.mark.parametrize(
    "path", ["../etc/passwd", "/../etc/passwd", "/a/../b", "~/x", "~root/x", "/a\\..\\b"]
)
async def test_traversal_is_refused_in_s2s_words_by_every_tool(tools: Tools, path: str) -> None:
    expected = f"Path traversal not allowed: {path}"
    assert await tools.error("ls", path=path) == expected
    assert await tools.error("read_file", file_path=path) == expected
    assert await tools.error("write_file", file_path=path, content="") == expected
    assert await tools.error("edit_file", file_path=path, old_string="a", new_string="b") == expected
    assert await tools.error("delete_file", file_path=path) == expected
    assert await tools.error("glob", pattern="*", path=path) == expected
    assert await tools.error("grep", pattern="x", path=path) == expected


@pytest.mark.parametrize(
    "path", ["C:/x", "c:\\x", "relative.txt", "", "  ", "/a\0b", "/" + "x" * 300, "/" + "a/" * 3000]
)
async def test_other_unusable_paths_are_refused_with_words(tools: Tools, path: str) -> None:
    assert await tools.error("read_file", file_path=path)


async def test_a_tilde_inside_a_name_and_dots_in_a_name_are_fine(tools: Tools) -> None:
    for name in ("notes~.txt", "a..b", "...", "ünïcode 名.txt"):
        await tools.ok("write_file", file_path=f"{W}/{name}", content="x")
        await tools.ok("read_file", file_path=f"{W}/{name}")


async def test_double_slashes_and_dots_are_normalised(tools: Tools) -> None:
    await tools.ok("write_file", file_path=f"/{W}//./a.txt", content="x")
    assert await tools.get(f"{W}/a.txt") == b"x"


async def test_reading_goes_on_where_the_trailer_says(tools: Tools) -> None:
    await tools.put(f"{W}/long", "".join(f"line {n}\n" for n in range(2150)))
    first = (await tools.ok("read_file", file_path=f"{W}/long"))["content"]
    assert first.endswith("\n... (150 more lines. Use offset=2000 to continue reading)")
    rest = (await tools.ok("read_file", file_path=f"{W}/long", offset=2000))["content"]
    assert rest.startswith("  2001\tline 2000\n")
    assert rest.endswith("  2150\tline 2149")


async def test_a_line_over_5000_characters_is_chunked_with_continuation_markers(tools: Tools) -> None:
    await tools.put(f"{W}/wide", "a\n" + "x" * 12_000 + "\nb")
    lines = (await tools.ok("read_file", file_path=f"{W}/wide"))["content"].split("\n")
    assert [line.partition("\t")[0].strip() for line in lines] == ["1", "2", "2.1", "2.2", "3"]
    assert [len(line.partition("\t")[2]) for line in lines] == [1, 5000, 5000, 2000, 1]


async def test_a_read_is_capped_in_characters_and_can_be_resumed_to_the_end(tools: Tools) -> None:
    await tools.put(f"{W}/big", "".join(f"{n:05d}" + "y" * 995 + "\n" for n in range(500)))
    seen, offset = [], 0
    while True:
        content = (await tools.ok("read_file", file_path=f"{W}/big", offset=offset))["content"]
        assert len(content) <= MAX_RESULT_CHARACTERS + 200
        rows = content.split("\n")
        seen += [row.split("\t")[1][:5] for row in rows if "\t" in row]
        if "Use offset=" not in rows[-1]:
            break
        offset = int(rows[-1].split("offset=")[1].split(" ")[0])
    assert seen == [f"{n:05d}" for n in range(500)]


async def test_one_huge_line_is_cut_and_said_to_be(tools: Tools) -> None:
    await tools.put(f"{W}/min.js", "z" * 1_000_000 + "\nnext\n")
    content = (await tools.ok("read_file", file_path=f"{W}/min.js"))["content"]
    assert len(content) <= MAX_RESULT_CHARACTERS + 300
    assert "line 1 is cut here" in content
    assert "offset=1 to continue" in content


async def test_empty_files_and_bad_windows_are_told_apart(tools: Tools) -> None:
    await tools.put(f"{W}/empty", "")
    await tools.put(f"{W}/two", "a\nb\n")
    content = (await tools.ok("read_file", file_path=f"{W}/empty"))["content"]
    assert content == "System reminder: File exists but has empty contents"
    assert "2 lines" in await tools.error("read_file", file_path=f"{W}/two", offset=2)
    assert "offset" in await tools.error("read_file", file_path=f"{W}/two", offset=-1)
    assert "limit" in await tools.error("read_file", file_path=f"{W}/two", limit=0)
    missing = await tools.error("read_file", file_path=f"{W}/nonexistent.txt")
    assert missing == f"Error: file not found: {W}/nonexistent.txt"
    assert "directory" in await tools.error("read_file", file_path=W)


async def test_binary_is_refused_and_other_encodings_are_shown_but_not_edited(tools: Tools) -> None:
    await tools.put(f"{W}/bin", b"\x7fELF\0\0")
    await tools.put(f"{W}/latin", "caf\xe9\n".encode("latin-1"))
    assert "binary" in await tools.error("read_file", file_path=f"{W}/bin")
    shown = await tools.ok("read_file", file_path=f"{W}/latin")
    assert shown["content"] == "     1\tcaf\N{REPLACEMENT CHARACTER}"
    assert "UTF-8" in shown["note"]
    assert "UTF-8" in await tools.error("edit_file", file_path=f"{W}/latin", old_string="caf", new_string="x")
    assert await tools.get(f"{W}/latin") == b"caf\xe9\n"


async def test_files_over_the_byte_limit_are_refused_before_they_are_taken_in(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tools.put(f"{W}/huge", b"x" * (files_module.MAX_FILE_BYTES + 1))
    assert "larger than" in await tools.error("read_file", file_path=f"{W}/huge")
    assert "larger than" in await tools.error(
        "edit_file", file_path=f"{W}/huge", old_string="x", new_string="y"
    )
    content = "x" * (files_module.MAX_FILE_BYTES + 1)
    assert "bytes" in await tools.error("write_file", file_path=f"{W}/h", content=content)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.jpeg", "a.gif", "a.webp", "A.PNG"])
async def test_images_come_as_base64_with_their_media_type(tools: Tools, name: str) -> None:
    await tools.put(f"{W}/{name}", b"\x89PNG\0")
    content = (await tools.ok("read_file", file_path=f"{W}/{name}"))["content"]
    assert content["type"] == "image"
    assert content["media_type"] in {"image/png", "image/jpeg", "image/gif", "image/webp"}
    assert base64.b64decode(content["data"]) == b"\x89PNG\0"


async def test_an_image_over_the_limit_is_refused(tools: Tools) -> None:
    await tools.put(f"{W}/a.png", b"x" * (MAX_IMAGE_BYTES + 1))
    assert "larger than" in await tools.error("read_file", file_path=f"{W}/a.png")


async def test_write_never_overwrites(tools: Tools) -> None:
    await tools.put(f"{W}/a", "first")
    message = await tools.error("write_file", file_path=f"{W}/a", content="second")
    assert message == f"File already exists: {W}/a. Use edit_file to modify."
    assert await tools.get(f"{W}/a") == b"first"
    assert "directory" in await tools.error("write_file", file_path=W, content="x")
    assert await tools.error("write_file", file_path=f"{W}/a/b", content="x")
    assert await tools.error("write_file", file_path=f"{W}/s", content="\ud800")


async def test_edit_speaks_s2s_words(tools: Tools) -> None:
    await tools.put(f"{W}/a", "one two two\ntwo\n")

    async def edit(old: str, new: str, **more: Any) -> Any:
        return await tools("edit_file", file_path=f"{W}/a", old_string=old, new_string=new, **more)

    assert (await edit("none", "x"))["message"] == "old_string not found in file content"
    assert (await edit("two", "two"))["message"] == "old_string and new_string are identical"
    assert (await edit("two", "x"))["message"] == (
        "old_string appears 3 times. Provide more context to make it unique, or set replace_all=True."
    )
    assert "empty" in (await edit("", "x"))["message"]
    assert "empty" in (await edit("", "x", replace_all=True))["message"]
    assert await edit("one", "1") == {"status": "success", "path": f"{W}/a", "occurrences": 1}
    assert (await edit("two", "2", replace_all=True))["occurrences"] == 3
    assert await tools.get(f"{W}/a") == b"1 2 2\n2\n"
    missing = await tools.error("edit_file", file_path=f"{W}/no", old_string="a", new_string="b")
    assert missing == f"Error: file not found: {W}/no"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\r\nb\r\n", "a\nb", "x\ny", "x\r\ny\r\n"),
        ("a\r\nb\r\n", "a", "x\ny", "x\r\ny\r\nb\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "x\r\ny", "x\r\ny\r\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("a\nb\r\nc\n", "a", "x", "x\nb\r\nc\n"),
        ("\ufeffa\n", "a", "b", "\ufeffb\n"),
        ("a", "a", "b", "b"),
    ],
)
async def test_edit_keeps_line_ends_as_they_are(
    tools: Tools, before: str, old: str, new: str, after: str
) -> None:
    await tools.put(f"{W}/f", before)
    await tools.ok("edit_file", file_path=f"{W}/f", old_string=old, new_string=new)
    assert (await tools.get(f"{W}/f")).decode() == after


async def test_an_edit_is_refused_when_the_file_changed_since_this_agent_read_it(tools: Tools) -> None:
    await tools.put(f"{W}/f", "a b\n")
    await tools.ok("read_file", file_path=f"{W}/f")
    await tools.put(f"{W}/f", "a c\n")
    message = await tools.error("edit_file", file_path=f"{W}/f", old_string="a", new_string="x")
    assert "changed since you read it" in message
    await tools.ok("read_file", file_path=f"{W}/f")
    await tools.ok("edit_file", file_path=f"{W}/f", old_string="a", new_string="x")
    await tools.ok("edit_file", file_path=f"{W}/f", old_string="x", new_string="y")
    assert await tools.get(f"{W}/f") == b"y c\n"


async def test_parallel_edits_of_one_file_in_one_reply_all_arrive(tools: Tools) -> None:
    await tools.put(f"{W}/f", "".join(f"<{n}>\n" for n in range(20)))
    await asyncio.gather(
        *(
            tools.ok("edit_file", file_path=f"{W}/f", old_string=f"<{n}>", new_string=f"[{n}]")
            for n in range(20)
        )
    )
    assert (await tools.get(f"{W}/f")).decode() == "".join(f"[{n}]\n" for n in range(20))


async def test_delete_takes_files_and_directories_but_never_the_workspace(tools: Tools) -> None:
    await tools.put(f"{W}/d/a", "x")
    await tools.put(f"{W}/d/e/b", "x")
    await tools.put(f"{W}/keep", "x")
    assert await tools.ok("delete_file", file_path=f"{W}/d/a") == {"status": "success", "path": f"{W}/d/a"}
    await tools.ok("delete_file", file_path=f"{W}/d")
    assert await tools.found("**/*") == ["/keep"]
    assert await tools.error("delete_file", file_path=f"{W}/d") == f"Error: file not found: {W}/d"
    assert await tools.error("delete_file", file_path="/")
    await tools.ok("write_file", file_path=f"{W}/d/a", content="again")


async def test_glob_knows_globstar_braces_and_the_base_directory(tools: Tools) -> None:
    for name in ("a.txt", "src/a.ts", "src/b/c.ts", "src/b/d.js", "src/x/e.ts", ".hid/f.ts", ".git/g.ts"):
        await tools.put(f"{W}/{name}", "x")
    assert await tools.found("**/*.ts", W) == ["/src/a.ts", "/src/b/c.ts", "/src/x/e.ts"]
    assert await tools.found("*.txt", W) == ["/a.txt"]
    assert await tools.found("*.ts", W) == []
    assert await tools.found("src/{b,x}/*.ts", W) == ["/src/b/c.ts", "/src/x/e.ts"]
    assert await tools.found("**/*.{js,txt}", W) == ["/a.txt", "/src/b/d.js"]
    assert await tools.found("*.ts", f"{W}/src") == ["/src/a.ts"]
    assert await tools.found(".hid/*", W) == ["/.hid/f.ts"]
    assert await tools.found(f"{W}/src/*.ts") == ["/src/a.ts"]
    entry = (await tools.ok("glob", pattern="*.txt", path=W))["entries"][0]
    assert set(entry) == {"path", "is_dir", "size", "modified_at"}
    assert entry["is_dir"] is False
    assert await tools("glob", pattern="*.none") == {"status": "success", "entries": []}


@pytest.mark.parametrize("pattern", ["../*", "a/../../*", "", "{1..100000}", "x" * 1000, "~/*", "**/" * 9])
async def test_glob_patterns_that_escape_or_explode_are_refused(tools: Tools, pattern: str) -> None:
    await tools.put(f"{W}/a", "x")
    assert await tools.error("glob", pattern=pattern, path=W)
    if pattern:  # an empty filter is what some models send for none
        assert await tools.error("grep", pattern="x", path=W, glob=pattern)


async def test_glob_says_when_and_why_it_is_partial(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(6):
        await tools.put(f"{W}/{n}", "x")
    monkeypatch.setattr(files_module, "MAX_ENTRIES", 4)
    result = await tools.ok("glob", pattern="*", path=W)
    assert len(result["entries"]) == 4
    assert result["truncated"] is True
    assert "6 files match" in result["note"]
    monkeypatch.setattr(files_module, "MAX_WALKED_FILES", 3)
    assert "partial" in (await tools.ok("glob", pattern="*", path=W))["note"]


async def test_grep_is_literal_and_has_three_output_modes(tools: Tools) -> None:
    await tools.put(f"{W}/a.py", "x = 1\n    def hello():\nhello()\n")
    await tools.put(f"{W}/sub/b.md", "hello (a.*b) --pre=sh\r\n")

    async def grep(pattern: str, **more: Any) -> str:
        return str((await tools.ok("grep", pattern=pattern, **more))["result"])

    assert await grep("hello") == f"{W}/a.py\n{W}/sub/b.md"
    assert await grep("def", output_mode="content") == f"{W}/a.py:2:    def hello():"
    assert await grep("hello", output_mode="count") == f"{W}/a.py: 2\n{W}/sub/b.md: 1"
    assert await grep("(a.*b)", output_mode="content") == f"{W}/sub/b.md:1:hello (a.*b) --pre=sh"
    assert await grep("--pre=sh") == f"{W}/sub/b.md"
    assert await grep("hello", glob="*.md") == f"{W}/sub/b.md"
    assert await grep("hello", glob="sub/*.md", path=W) == f"{W}/sub/b.md"
    assert await grep("hello", path=f"{W}/sub") == f"{W}/sub/b.md"
    assert await grep("hello", path=f"{W}/a.py", output_mode="count") == f"{W}/a.py: 2"
    assert await grep("h.llo") == "No matches found."
    assert "output_mode" in await tools.error("grep", pattern="x", output_mode="lines")
    assert "pattern" in await tools.error("grep", pattern="")
    assert "pattern" in await tools.error("grep", pattern="a\nb")
    assert await tools.error("grep", pattern="a", path=f"{W}/none")


async def test_grep_passes_over_binaries_and_git_and_is_bounded(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tools.put(f"{W}/bin", b"needle\0")
    await tools.put(f"{W}/.git/x", "needle")
    await tools.put(f"{W}/many", "needle " + "x" * 3000 + "\n")
    result = await tools.ok("grep", pattern="needle", output_mode="content")
    assert result["result"].count("needle") == 1
    assert len(result["result"]) < 2100
    await tools.put(f"{W}/many2", "needle line\n" * 9000)
    result = await tools.ok("grep", pattern="needle", output_mode="content")
    assert len(result["result"]) <= MAX_RESULT_CHARACTERS + 100
    monkeypatch.setattr(files_module, "MAX_GREP_HITS", 5)
    assert "partial" in (await tools.ok("grep", pattern="needle", output_mode="count"))["note"]


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("read_file", {}, "file_path"),
        ("read_file", {"file_path": "/a", "offset": "many"}, "offset"),
        ("read_file", {"file_path": "/a", "lines": 3}, "lines"),
        ("read_file", {"file_path": 7}, "file_path"),
        ("write_file", {"file_path": "/a"}, "content"),
        ("edit_file", {"file_path": "/a", "old_string": "a"}, "new_string"),
    ],
)
async def test_wrong_arguments_are_named_to_the_model(
    tools: Tools, name: str, args: dict[str, Any], named: str
) -> None:
    message = await tools.error(name, **args)
    assert named in message
    assert "It takes:" in message


async def test_the_failure_of_a_backend_is_not_told_as_the_agents_mistake(tools: Tools) -> None:
    class Died(Exception):
        pass

    async def die(*_: Any, **__: Any) -> Any:
        raise Died

    for method in ("stat", "list", "read_bytes", "write_bytes", "delete", "walk", "grep"):
        setattr(tools.backend, method, die)
    for name, args in (
        ("ls", {"path": W}),
        ("read_file", {"file_path": f"{W}/a"}),
        ("write_file", {"file_path": f"{W}/a", "content": ""}),
        ("delete_file", {"file_path": f"{W}/a"}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "x"}),
    ):
        with pytest.raises(Died):
            await tools(name, **args)
