"""The clients that a deep agent knows, each with two models; the second has the larger window."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import pytest
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from fanout.orchestrator.deep_agent.models.resolve import preload_client, resolve_model
from fanout.orchestrator.deep_agent.models.retries import RetryPolicy
from tests.integration.models.model_server import Answer, ModelServer, environment, model_server
from tests.unit.deep_agent.running import Run

KEY = "canary-key-77ab"
SOON = RetryPolicy(attempts=3, first_delay_seconds=0.01)


class Provider(NamedTuple):
    name: str
    smaller: str
    larger: str


PROVIDERS = [
    Provider("gemini", "gemini-2.0-flash", "gemini-2.5-flash"),
    Provider("openai", "gpt-4o", "gpt-5"),
    Provider("responses", "responses/gpt-4o", "responses/gpt-5"),
    Provider("anthropic", "claude-sonnet-4-5", "claude-sonnet-4-6"),
]


class Serve(Protocol):
    def __call__(self, *answers: Answer) -> AbstractContextManager[ModelServer]: ...


def served(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts a server, and says so to all clients."""

    @contextmanager
    def start(*answers: Answer) -> Any:
        with model_server(answers) as server:
            for name, value in environment(server, KEY).items():
                monkeypatch.setenv(name, value)
            yield server

    return start


async def run_agent(names: str, retries: RetryPolicy = SOON, **more: Any) -> Run:
    """A deep agent's run on these models, to its end."""
    await preload_client(names)
    return await Run(resolve_model(names, agent_name="a", retries=retries), **more).to_end()


async def ask(names: str, *, streaming: bool = False) -> str:
    """One request to these models, without an agent that would mend it; the reply's text."""
    await preload_client(names)
    model = resolve_model(names, agent_name="a", retries=SOON)
    request = LlmRequest(contents=[types.UserContent("go")], config=types.GenerateContentConfig())
    replies = [reply async for reply in model.generate_content_async(request, stream=streaming)]
    return "".join(
        part.text or "" for part in (replies[-1].content and replies[-1].content.parts) or []
    )


def told(request: dict[str, Any]) -> str:
    """What a model was told, whatever the service calls it."""
    parts: Sequence[Any] = [request.get(name) for name in ("contents", "messages", "input")]
    return str([part for part in parts if part])
