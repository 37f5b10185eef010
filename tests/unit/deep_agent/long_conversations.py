"""Conversations that pass a small window, and what came of them."""

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions import Session
from google.genai import types
from pydantic import Field

from fanout.orchestrator.deep_agent.backends.state import KEY_PREFIX
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig
from fanout.orchestrator.deep_agent.models.retries import ResilientModel
from fanout.orchestrator.deep_agent.models.scripted_model import Script, ScriptedModel
from tests.integration.scripts import call
from tests.unit.deep_agent.running import AT_ONCE, Run

GOAL = "Rename the class Bread to Loaf in all forty modules, and keep the public names."
SUMMARY = {"text": "## Done so far\nSome modules are renamed."}
PADDING = "x" * 1_000


async def look(number: int) -> dict[str, Any]:
    """Look at something."""
    return {"number": number, "text": f"result {number} {PADDING}"}


class Watched(ScriptedModel):
    """A scripted model that keeps what it was asked."""

    requests: list[list[types.Content]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(list(llm_request.contents))
        async for response in super().generate_content_async(llm_request, stream):
            yield response

    @property
    def turns(self) -> list[list[types.Content]]:
        """The requests of the agent itself."""
        return [asked for asked in self.requests if not is_summary_request(asked)]


def is_summary_request(contents: list[types.Content]) -> bool:
    return said(contents[0]).startswith("An AI agent works on a task")


def said(content: types.Content) -> str:
    return "\n".join(part.text for part in content.parts or [] if part.text)


def watched(replies: list[dict[str, Any]], *, summary: dict[str, Any] = SUMMARY) -> Watched:
    conversations = [{"when": "^An AI agent works", "replies": [summary]}, {"replies": replies}]
    script = Script.model_validate({"conversations": conversations})
    return Watched(script=script, agent_name="deep_agent")


def resilient(model: Watched) -> ResilientModel:
    return ResilientModel(model=model.model, candidates=[model], retries=AT_ONCE)


def steps(count: int) -> list[dict[str, Any]]:
    return [{"calls": [call("look", number=number)]} for number in range(count)] + [
        {"text": "done"}
    ]


def config(**changes: Any) -> SummarizationConfig:
    return SummarizationConfig(**{"window_tokens": 4_000, **changes})


async def session_of(run: Run) -> Session:
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    return session


def summaries(session: Session) -> list[Event]:
    return [event for event in session.events if event.actions.compaction]


def history(session: Session) -> list[str]:
    prefix = f"{KEY_PREFIX}/conversation_history/s/"
    names = sorted(key for key in session.state if key.startswith(prefix))
    return [session.state[name]["content"] for name in names]


def pairs_are_intact(contents: list[types.Content]) -> bool:
    """Each content with calls is followed by one with as many results; nothing else has any."""
    parts = [content.parts or [] for content in contents]
    calls = [sum(part.function_call is not None for part in found) for found in parts]
    results = [sum(part.function_response is not None for part in found) for found in parts]
    return calls[-1] == 0 and results == [0, *calls[:-1]]
