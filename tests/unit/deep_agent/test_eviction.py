"""A result that is too long for the conversation.

What the model gets, and that nothing of it is lost.
"""

import gc
import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent import Middleware, answers_message, pending_approvals
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.context import eviction
from fanout.orchestrator.deep_agent.context.eviction import LINE_CHARACTERS, readable
from tests.integration.scripts import call
from tests.unit.deep_agent.long_conversations import resilient, watched
from tests.unit.deep_agent.running import Run, scripted

MEBIBYTE = 1024 * 1024


async def big_log() -> dict[str, Any]:
    """A log of 1 MB."""
    return {
        "status": "success",
        "output": "".join(f"line {number} of the log\n" for number in range(50_000)),
    }


async def big_text() -> str:
    """A text of 1 MB in one line."""
    return " ".join(f"word{number}" for number in range(110_000))


async def big_json() -> str:
    """JSON of 1 MB in one line."""
    return json.dumps([{"id": number, "name": f"record {number}"} for number in range(25_000)])


async def big_records() -> dict[str, Any]:
    """Records of 1 MB."""
    return {"records": [{"id": number, "name": f"record {number}"} for number in range(25_000)]}


async def big_bytes() -> dict[str, Any]:
    """A result with what JSON does not have."""
    return {"data": {number: {number} for number in range(30_000)}}


async def small() -> dict[str, Any]:
    """A small result."""
    return {"status": "success", "output": "y" * 70_000}


class Reader(BaseLlm):
    """Calls the tool that it is told, then reads the file with its result to the end."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        results = [
            part.function_response.response or {}
            for content in llm_request.contents
            for part in content.parts or []
            if part.function_response
        ]
        more = (
            re.search(r"Use offset=(\d+) to continue", str(results[-1].get("content")))
            if results
            else None
        )
        reply = types.Part(text="done")
        if not results:
            reply = types.Part.from_function_call(
                name=str(llm_request.contents[0].parts[0].text), args={}
            )
        elif more or len(results) == 1:
            args = {"file_path": results[0]["saved_to"], "offset": int(more[1]) if more else 0}
            reply = types.Part.from_function_call(name="read_file", args=args)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1
        )  # no summary in between
        yield LlmResponse(content=types.Content(role="model", parts=[reply]), usage_metadata=usage)


async def evicted(tool: Any, **agent: Any) -> dict[str, Any]:
    model = scripted([{"calls": [call(tool.__name__)]}, {"text": "done"}])
    run = await Run(model, tools=[tool], **agent).to_end()
    return run.results[0]


@pytest.mark.parametrize("tool", [big_log, big_text, big_json, big_records, big_bytes])
async def test_a_megabyte_costs_the_model_two_thousand_tokens_at_most(tool: Any) -> None:
    result = await evicted(tool)
    assert result["status"] == "result_too_large"
    assert result["characters"] > 500_000
    assert re.fullmatch(r"/large_tool_results/[\w-]+", result["saved_to"])
    assert len(json.dumps(result)) / 4 <= 2_000
    assert "lines of the file left out here" in result["preview"]


@pytest.mark.parametrize(
    ("has", "names"),
    [
        (["read_file", "grep"], ["read_file (offset, limit) or grep"]),
        (["read_file"], ["read_file (offset, limit)"]),
        (["grep", "ls"], ["grep"]),
    ],
)
async def test_only_tools_that_the_agent_has_are_named(has: list[str], names: list[str]) -> None:
    result = await evicted(big_log, built_in_tools=has)
    assert f"need: {names[0]}; your shell" in result["message"]
    assert result["saved_to"]


async def test_what_the_agent_could_not_read_is_not_kept_and_it_is_told() -> None:
    result = await evicted(big_log, built_in_tools=["ls"])
    assert result["saved_to"] is None
    assert "no tool that could read the rest" in result["message"]
    assert "line 0 of the log" in result["preview"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[list[LocalShellBackend]]:
    """A shell in a list; its outputs are deleted afterwards, where no event loop is held up."""
    made = [LocalShellBackend(tmp_path)]
    yield made
    made.clear()
    gc.collect()


async def test_an_output_that_was_cut_is_not_cut_again(shell: list[LocalShellBackend]) -> None:
    command = call("execute", command="seq 1 60000; echo failed >&2; exit 3")
    model = scripted([{"calls": [command]}, {"text": "done"}])
    [result] = (await Run(model, backend=shell[0]).to_end()).results
    assert (result["status"], result["exit_code"], result["truncated"]) == ("error", 3, True)
    head, left_out, tail = re.split(r"\n\[.* \((\d+) lines\) .*\]\n", result["output"])
    assert head.endswith(f"\n{head.count(chr(10)) + 1}")
    assert tail.endswith("\n60000\nfailed\n")
    assert head.count("\n") + 1 + int(left_out) + tail.count("\n") == 60_001


async def test_results_that_fit_are_left_alone() -> None:
    assert await evicted(small) == {"status": "success", "output": "y" * 70_000}


@pytest.mark.parametrize(
    ("tool", "wanted"),
    [
        (big_log, [f"line {number} of the log" for number in range(50_000)]),
        (big_text, [f"word{number}" for number in range(110_000)]),
        (big_json, [f'"name": "record {number}"' for number in range(25_000)]),
        (big_records, [f'"id": {number},' for number in range(25_000)]),
    ],
)
async def test_it_is_read_back_in_full_page_by_page(
    tool: Any, wanted: list[str], tmp_path: Any
) -> None:
    run = Run(
        Reader(model="reader"), tools=[tool], backend=DirectoryBackend(tmp_path, mount="/workspace")
    )
    await run.to_end(tool.__name__)
    pages = [result["content"] for result in run.results[1:]]
    seen = "".join(re.sub(r"^ *[\d.]+\t", "", page, flags=re.MULTILINE) for page in pages)
    text = " ".join(seen.split())
    at = 0
    for piece in wanted:
        at = text.find(piece, at)
        assert at >= 0, f"{piece} is missing"
    assert list(tmp_path.iterdir()) == [], "the workspace is as it was"


async def test_a_line_of_it_is_found_by_grep() -> None:
    search = call("grep", pattern="word54321", path="/large_tool_results", output_mode="content")
    model = scripted([{"calls": [call("big_text")]}, {"calls": [search]}, {"text": "done"}])
    run = await Run(model, tools=[big_text]).to_end()
    assert "word54321" in run.results[1]["result"]
    assert len(run.results[1]["result"]) < 2 * LINE_CHARACTERS


async def test_long_files_are_read_as_before_and_never_moved_to_another_file() -> None:
    lines = "\n".join("z" * 100 for _ in range(5_000))
    model = scripted(
        [
            {"calls": [call("write_file", file_path="/long.txt", content=lines)]},
            {"calls": [call("read_file", file_path="/long.txt", limit=5_000)]},
            {"text": "done"},
        ]
    )
    run = await Run(model).to_end()
    assert run.results[1]["status"] == "success"
    assert "Use offset=" in run.results[1]["content"]


async def test_parallel_results_get_a_file_each() -> None:
    model = scripted(
        [{"calls": [call("big_log"), call("big_json"), call("small")]}, {"text": "done"}]
    )
    run = await Run(model, tools=[big_log, big_json, small]).to_end()
    paths = {result.get("saved_to") for result in run.results}
    assert len(paths) == 3, "two files, and None"


async def test_the_oldest_make_room_and_say_so_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_KEPT_BYTES", 3 * MEBIBYTE)
    model = watched(
        [{"calls": [call("big_log")]}, {"calls": [call("big_json")]}, {"calls": [call("big_text")]}]
    )
    run = Run(resilient(model), tools=[big_log, big_json, big_text])
    with pytest.raises(Exception, match="reply 4"):
        await run.to_end()
    paths = [result["saved_to"] for result in run.results]
    reads = [{"calls": [call("read_file", file_path=path)]} for path in paths]
    model.script = watched([*([{"text": "x"}] * 3), *reads, {"text": "done"}]).script
    await run.go_on("read them")
    first, second, third = run.results[-3:]
    assert "dropped to make room" in first["content"]
    assert "record 1" in second["content"]
    assert "word1 " in third["content"]


async def test_a_result_larger_than_any_file_is_cut_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eviction, "MAX_FILE_BYTES", MEBIBYTE // 2)
    result = await evicted(big_log)
    assert re.search(r"its last \d+ characters were dropped", result["message"])


async def test_an_agents_own_file_in_the_folders_place_ends_no_run() -> None:
    write = call("write_file", file_path="/large_tool_results", content="mine")
    run = await Run(
        scripted([{"calls": [write]}, {"calls": [call("big_log")]}, {"text": "done"}]),
        tools=[big_log],
    ).to_end()
    assert run.results[1]["saved_to"] is None
    assert "could not be kept" in run.results[1]["message"]


def test_readable_text_has_no_long_lines_and_loses_nothing() -> None:
    for value in (
        "a" * 10_000,
        "word " * 5_000,
        {"text": "b" * 9_000 + "\nc"},
        [["d" * 7_000] * 2],
        {1: {2}},
    ):
        text = readable(value)
        assert max(map(len, text.split("\n"))) <= LINE_CHARACTERS
    assert readable("a" * 10_000).replace("\n", "") == "a" * 10_000
    assert readable("word " * 5_000).replace("\n", "") == "word " * 5_000


class InPlaceOfTools(Middleware):
    """Answers each call itself, at length."""

    async def before_tool(self, tool: BaseTool, args: dict[str, Any], tool_context: Any) -> Any:
        """Return the log."""
        del tool, args, tool_context
        return await big_log()


@pytest.mark.parametrize("way", ["in the place of a tool", "after an approval"])
async def test_a_long_result_is_replaced_whichever_way_it_comes(way: str) -> None:
    asks = way == "after an approval"
    replies = [{"calls": [call("big_log")]}, {"text": "done"}]
    run = await Run(
        scripted(replies),
        tools=[big_log],
        middleware=[] if asks else [InPlaceOfTools()],
        interrupt_on={"big_log": True} if asks else None,
    ).to_end()
    if asks:
        (asked,) = pending_approvals(run.events)
        await run.answer(answers_message([(asked, ApprovalAnswer(decision="approve"))]))

    assert run.results[-1]["status"] == "result_too_large"
