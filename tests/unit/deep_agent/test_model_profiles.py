"""The tools that change files are those of the model; what guards them does not depend on it."""

from collections.abc import Collection
from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest

from fanout.orchestrator.deep_agent import Middleware, ModelProfile, create_deep_agent
from fanout.orchestrator.deep_agent.approval import decisions_for
from fanout.orchestrator.deep_agent.models.facts import (
    DEFAULT_PROFILE,
    EDIT_TOOLS,
    choose_edit_tools,
    find_profile,
)
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

PATCHES = ModelProfile(edit_tools=("apply_patch",), instruction="Patch.")
S2 = ["ls", "read_file", "write_file", "edit_file", "delete_file", "glob", "grep"]


@pytest.mark.parametrize(
    ("model", "tools"),
    [
        ("gemini-2.5-flash", ("edit_file",)),
        ("claude-sonnet-4-5", ("edit_file", "multi_edit")),
        ("anthropic/claude-sonnet-4-5", ("edit_file", "multi_edit")),
        ("gpt-5.1", ("apply_patch",)),
        ("responses/gpt-5-codex,gemini-2.5-flash", ("apply_patch",)),
        ("openrouter/openai/GPT-5", ("apply_patch",)),
        ("gpt-4o", ("edit_file",)),
        ("ollama_chat/qwen3", ("edit_file",)),
        ("scripted:/scripts/claude-/gpt-5", ("edit_file",)),
        ("", ("edit_file",)),
    ],
)
def test_a_models_edit_tools_are_found_by_its_name(model: str, tools: tuple[str, ...]) -> None:
    assert find_profile(model).edit_tools == tools


@pytest.mark.parametrize(
    ("chosen", "tools"),
    [
        (None, ("apply_patch",)),
        (S2, ("apply_patch",)),
        (["read_file", "edit_file"], ("edit_file",)),
        (["read_file", "write_file"], ()),
        (["multi_edit"], ("multi_edit",)),
    ],
)
def test_a_choice_of_tools_gives_no_more_than_it_says(
    chosen: Collection[str] | None, tools: tuple[str, ...]
) -> None:
    assert choose_edit_tools(PATCHES, chosen) == tools


async def edits(profile: ModelProfile | None, **options: Any) -> tuple[list[str], str]:
    """The edit tools of an agent with a profile, and its system instruction."""
    seen: list[LlmRequest] = []

    class Looking(Middleware):
        async def before_model(self, callback_context: Any, llm_request: LlmRequest) -> None:
            del callback_context
            seen.append(llm_request)

    model = scripted([{"text": "done"}])
    await Run(model, model_profile=profile, middleware=[Looking()], **options).to_end()
    tools = [name for name in seen[0].tools_dict if name in EDIT_TOOLS]
    return tools, str(seen[0].config.system_instruction)


async def test_an_agent_has_its_models_edit_tools_and_text_and_the_default_is_s2s() -> None:
    assert await edits(None) == await edits(DEFAULT_PROFILE)
    assert (await edits(None))[0] == ["edit_file"]
    tools, instruction = await edits(PATCHES)
    assert tools == ["apply_patch"]
    assert "Patch." in instruction
    tools, instruction = await edits(PATCHES, built_in_tools=["read_file", "edit_file"])
    assert tools == ["edit_file"]
    assert "Patch." not in instruction


@pytest.mark.parametrize(
    ("tool", "args", "decisions"),
    [
        ("edit_file", {}, ("approve",)),
        ("multi_edit", {}, ("approve",)),
        ("apply_patch", {}, ("reject",)),
        ("write_file", {}, None),
        ("write_file", {"overwrite": False}, None),
        ("write_file", {"overwrite": "yes"}, ("approve",)),
        ("delete_file", {}, ("reject", "respond")),
        ("ls", {}, None),
    ],
)
def test_a_policy_holds_for_every_tool_that_does_the_same(
    tool: str, args: dict[str, Any], decisions: tuple[str, ...] | None
) -> None:
    policy: Any = {"edit_file": ("approve",), "delete_file": ("reject", "respond")}
    assert decisions_for(policy, tool, args) == decisions


@pytest.mark.parametrize("guarded", ["edit_file", "write_file", "delete_file", "apply_patch"])
async def test_no_profile_gets_around_an_approval(guarded: str) -> None:
    patch = "*** Begin Patch\n*** Add File: /a\n+x\n*** End Patch"
    run = Run(
        scripted([{"calls": [call("apply_patch", input=patch)]}, {"text": "done"}]),
        model_profile=PATCHES,
        interrupt_on={guarded: True},
    )
    await run.to_end()
    assert "file:/a" not in str(run.results)
    assert all(result.get("status") != "success" for result in run.results)


async def test_an_agent_that_may_only_create_files_does_not_overwrite() -> None:
    write = call("write_file", file_path="/a", content="x")
    again = call("write_file", file_path="/a", content="y", overwrite=True)
    run = await Run(
        scripted([{"calls": [write]}, {"calls": [again]}, {"text": "done"}]),
        built_in_tools=["write_file", "read_file"],
    ).to_end()
    assert [result["status"] for result in run.results] == ["success", "error"]


def test_an_agent_is_made_for_a_model_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    agent = create_deep_agent("gpt-5", interrupt_on={"edit_file": True})
    names = {getattr(tool, "name", "") for tool in agent.tools}
    assert "apply_patch" in names
    assert "edit_file" not in names
