"""Servers of a person's own: found however their address is written, tried, and asked."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.cli.checks.doctor_checks import is_weak, trial_sentence
from fanout.orchestrator.cli.commands.own_server import (
    KeyWanted,
    NoModelServer,
    find_server,
    is_address,
)
from fanout.orchestrator.deep_agent import resolve_model, try_model, watched_by
from tests.integration.models.local_servers import KINDS, NAME, Kind, local_server

OPENAI = Kind()


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(("_API_KEY", "_BASE_URL", "_API_BASE", "_HOST")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


WRITTEN = ("{}", "{}/", "{}/v1", "{}/v1/", "{}/v1/chat/completions", "{}/api/tags")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_is_found_and_answers_however_its_address_is_written(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour = KINDS[kind]
    with local_server(behaviour) as server:
        bare = server.url.removeprefix("http://")
        for written in WRITTEN:
            if behaviour.prefix or "/v1" not in written:
                key = "any" if behaviour.key == "" else None
                found = await asyncio.to_thread(find_server, written.format(bare), key)
                assert NAME in found.models
                assert found.address == f"http://{bare}{behaviour.prefix}"
        monkeypatch.setenv("OPENAI_BASE_URL", found.address)
        trial = await try_model(f"chat/{NAME}")
    assert trial_sentence("it", trial).startswith("it answered in ")
    assert trial_sentence("it", trial).endswith("streaming works, tools work.")


@pytest.mark.parametrize(
    ("name", "variable", "path"),
    [
        (f"ollama/{NAME}", "OLLAMA_HOST", ""),
        (f"chat/{NAME}", "OPENAI_API_BASE", "/v1"),
        *(
            pytest.param(f"{provider}/{NAME}", variable, path, marks=pytest.mark.slow)
            for provider, variable, path in (
                ("ollama_chat", "OLLAMA_HOST", ""),
                ("openai", "OPENAI_API_BASE", "/v1"),
                ("openai", "OPENAI_BASE_URL", "/v1/"),
                ("hosted_vllm", "HOSTED_VLLM_API_BASE", "/v1"),
                ("lm_studio", "LM_STUDIO_API_BASE", "/v1"),
            )
        ),
    ],
)
@pytest.mark.timeout(300)
async def test_each_way_to_name_a_local_model_needs_an_address_and_no_key(
    name: str, variable: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_server(KINDS["ollama"]) as server:
        monkeypatch.setenv(variable, f"{server.url}{path}")
        trial = await try_model(name)
    assert not trial.fault
    assert trial.takes_tools


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (replace(OPENAI, refuses_tools=(400, "qwen3 does not support tools")), "refuses tools"),
        (replace(OPENAI, refuses_tools=(500, "tools param requires --jinja")), "refuses tools"),
        (replace(OPENAI, refuses_streams=(400, "stream must be false")), "does not stream"),
        (replace(OPENAI, refuses_streams=(501, "no")), "does not stream"),
        (replace(OPENAI, ignores_streams=True), "does not stream"),
        (replace(OPENAI, calls_tools=False), "did not call the one"),
    ],
)
async def test_a_trial_says_what_a_server_does_not_do(
    kind: Kind, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_server(kind) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        trial = await try_model(f"chat/{NAME}")
    sentence = trial_sentence("it", trial)
    assert said in sentence
    assert is_weak(trial) == ("tools" in said or "call" in said)
    if kind.refuses_tools:
        assert kind.refuses_tools[1] in sentence


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (replace(OPENAI, is_page=True), "a web page"),
        (replace(OPENAI, models=None), "status 404"),
    ],
)
def test_what_is_no_server_of_models_is_named_with_what_it_answered(kind: Kind, said: str) -> None:
    with local_server(kind) as server, pytest.raises(NoModelServer, match=said):
        find_server(server.url, None)


def test_an_address_where_nothing_listens_is_named() -> None:
    with local_server(OPENAI) as server:
        url = server.url
    with pytest.raises(NoModelServer, match="Is the server running, and is that its port"):
        find_server(url, None)


def test_a_server_that_wants_a_key_says_so() -> None:
    with local_server(replace(OPENAI, key="right")) as server:
        for key in (None, "wrong"):
            with pytest.raises(KeyWanted, match="requires a key"):
                find_server(server.url, key)
        assert find_server(server.url, "right").models == (NAME,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://localhost:11434", True),
        ("localhost:11434", True),
        (":8080", True),
        ("gpu.lan:8000/v1", True),
        ("[::1]:8080", True),
        ("qwen3:8b", False),
        ("gemini-2.5-flash", False),
        ("ollama/llama3.2:1b", False),
        ("scripted:replies.yaml", False),
    ],
)
def test_an_address_is_told_from_the_name_of_a_model(text: str, expected: bool) -> None:
    assert is_address(text) == expected


class Watched:
    """What a watcher hears of a request."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def asked(self, model: str, attempt: int) -> None:
        self.heard.append((model, attempt))

    def received(self, characters: int) -> None:
        self.heard.append(characters)

    def failed(self, why: str) -> None:
        self.heard.append(why)

    def answered(self) -> None:
        self.heard.append("answered")


async def asked(name: str, watched: Watched, times: int = 1) -> list[list[LlmResponse]]:
    model = resolve_model(name, agent_name="a")
    request = LlmRequest(contents=[types.UserContent("hi")], config=types.GenerateContentConfig())
    with watched_by(watched):
        return [
            [response async for response in model.generate_content_async(request)]
            for _ in range(times)
        ]


async def test_a_watched_reply_is_streamed_and_comes_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    with local_server(OPENAI) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        ((reply,),) = await asked(f"chat/{NAME}", watched)
    assert reply.content is not None
    assert [part.text for part in reply.content.parts or ()] == ["I am ready."]
    assert not reply.partial
    assert server.requests[0]["stream"] is True
    assert watched.heard == [(f"chat/{NAME}", 1), len("I am ready."), "answered"]


@pytest.mark.parametrize(
    "kind",
    [
        replace(OPENAI, refuses_streams=(400, "stream must be false")),
        replace(OPENAI, refuses_streams=(422, "unknown field")),
        replace(OPENAI, refuses_streams=(500, "internal error")),
        replace(OPENAI, refuses_streams=(501, "not implemented")),
        replace(OPENAI, ignores_streams=True),
    ],
)
async def test_a_server_that_rejects_streaming_is_asked_at_once_without_it_and_then_always(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    with local_server(kind) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        replies = await asked(f"chat/{NAME}", watched, times=2)
    assert [len(each) for each in replies] == [1, 1]
    assert [request.get("stream") for request in server.requests] == [True, None, None]
