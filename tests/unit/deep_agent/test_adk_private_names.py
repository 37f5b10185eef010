"""Each private name of ADK that is used does what fanout expects of it.

`make newest-adk` runs these tests against the newest release.
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap

import pytest
from google.adk.agents import LlmAgent, RunConfig
from google.adk.events import Event, EventActions
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

import fanout.orchestrator.adk as our_adk
from fanout.orchestrator import deep_agent
from fanout.orchestrator.deep_agent import adk_internals
from fanout.workers import agent as worker_agent

CALL = types.Part(function_call=types.FunctionCall(id="call-1", name="read_file", args={}))
RESPONSE = types.Part(
    function_response=types.FunctionResponse(id="call-1", name="read_file", response={})
)


def event(*parts: types.Part, author: str = "agent", **fields) -> Event:
    return Event(author=author, content=types.Content(role="user", parts=[*parts]), **fields)


def test_a_prefix_ends_before_a_call_whose_response_is_later():
    said, called, answered = event(types.Part(text="Hello")), event(CALL), event(RESPONSE)

    cut = adk_internals.self_contained_prefix([said, called], [said, called, answered])

    assert list(cut) == [said]
    whole = [said, called, answered]
    assert list(adk_internals.self_contained_prefix(whole, whole)) == whole


def test_a_rewind_takes_back_the_events_of_its_invocation_and_later_ones():
    kept = event(types.Part(text="first"), invocation_id="one")
    undone = event(types.Part(text="second"), invocation_id="two")
    rewind = Event(
        author="user",
        invocation_id="three",
        actions=EventActions(rewind_before_invocation_id="two"),
    )

    assert adk_internals.without_rewound([kept, undone, rewind]) == [kept]


def test_call_ids_are_those_of_function_calls():
    assert adk_internals.call_ids([event(CALL), event(RESPONSE)]) == {"call-1"}


@pytest.mark.parametrize(
    ("branch", "scope", "included"),
    [(None, None, True), ("root.other", None, False), (None, "another", False)],
)
def test_an_event_of_another_branch_or_scope_is_not_in_the_context(branch, scope, included):
    one = event(types.Part(text="Hello"), branch=branch, isolation_scope=scope)

    assert adk_internals.is_in_context("root", one, None, node_path=None) is included


def test_what_happened_inside_of_a_tool_is_of_its_branch():
    inside = event(types.Part(text="Hello"), branch="root.read_file@call-1", author="read_file")
    outside = event(types.Part(text="Hello"), branch="root")

    assert not adk_internals.is_of_tool_branch("root", outside, "agent", {"call-1"})
    assert adk_internals.is_of_tool_branch("root", inside, "agent", {"call-1"})


def test_a_tools_declaration_has_its_name():
    def look(where: str) -> str:
        """Look there."""
        return where

    assert adk_internals.tool_declaration(FunctionTool(look)).name == "look"


def test_the_registry_maps_patterns_to_classes_or_to_where_they_are():
    entries = adk_internals.registered_models()

    assert entries
    assert all(isinstance(pattern, str) for pattern in entries)
    for entry in entries.values():
        assert isinstance(entry, tuple) or issubclass(entry, BaseLlm)
    assert adk_internals.is_registered_prefix("gemini", Gemini.__name__)
    assert not adk_internals.is_registered_prefix("claude", Gemini.__name__)


@pytest.mark.timeout(300)  # LiteLLM's import reads thousands of files
@pytest.mark.slow
def test_litellm_becomes_known_to_adks_module(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
    pytest.importorskip("litellm")
    lite_llm = importlib.import_module("google.adk.models.lite_llm")

    adk_internals.import_litellm()

    assert lite_llm.litellm is importlib.import_module("litellm")


def test_a_run_has_a_streaming_mode_and_a_model_its_capabilities():
    streaming_mode = adk_internals.StreamingMode

    assert RunConfig(streaming_mode=streaming_mode.SSE).streaming_mode is streaming_mode.SSE
    assert isinstance(Gemini(model="gemini-2.5-flash").capabilities, adk_internals.LlmCapabilities)
    assert adk_internals.LlmCapabilities(output_schema_and_tools=True).output_schema_and_tools


def test_a_flow_takes_a_processor_before_its_compaction():
    class Processor(adk_internals.BaseLlmRequestProcessor):
        async def run_async(self, invocation_context, llm_request):
            del invocation_context, llm_request
            for nothing in ():
                yield nothing

    flow = LlmAgent(name="agent", model="gemini-2.5-flash")._llm_flow
    assert isinstance(flow, BaseLlmFlow)
    before = len(flow.request_processors)

    flow.insert_request_processor_before("compaction", Processor())

    assert len(flow.request_processors) == before + 1


@pytest.mark.parametrize(
    ("where", "names"),
    adk_internals.OVERRIDDEN.items(),
    ids=[class_name for _, class_name in adk_internals.OVERRIDDEN],
)
def test_what_our_subclasses_override_exists(where, names):
    module, class_name = where
    base = getattr(importlib.import_module(module), class_name)

    assert {name for name in names if not hasattr(base, name)} == set()


def test_what_our_subclasses_use_of_adks_private_names_is_listed():
    listed = set().union(*adk_internals.OVERRIDDEN.values())
    unlisted = {
        f"{cls.__module__}.{cls.__name__}": used - listed
        for cls in our_classes_on_adk()
        if (used := private_names_used(cls)) - listed
    }

    assert unlisted == {}


def our_classes_on_adk() -> list[type]:
    packages = [deep_agent, our_adk, worker_agent]
    modules = [
        importlib.import_module(found.name)
        for package in packages
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return [
        cls
        for module in modules
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__ and adk_bases(cls)
    ]


def adk_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("google.adk")]


def private_names_used(cls: type) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    theirs = {name for base in adk_bases(cls) for name in vars(base)}
    return {name for name in named & theirs if name.startswith("_") and not name.startswith("__")}
