"""What a deep agent's model is told before each of its replies."""

from typing import Any

from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from tests.unit.deep_agent.running import scripted


class _Listening(BasePlugin):
    """Keeps the system instruction of every request."""

    def __init__(self) -> None:
        super().__init__(name="listening")
        self.heard: list[str] = []

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        del callback_context
        self.heard.append(str(llm_request.config.system_instruction))


async def instructions(
    *replies: dict[str, Any], state: dict[str, Any] | None = None, **agent: Any
) -> list[str]:
    """The system instruction of every call of the model while it gives these replies and ends."""
    listening = _Listening()
    made = create_deep_agent(scripted([*replies, {"text": "Done."}]), **agent)
    runner = InMemoryRunner(app=create_deep_app(made, plugins=[listening]))
    await runner.session_service.create_session(
        app_name=runner.app_name, user_id="u", session_id="s", state=state
    )
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
        pass
    return listening.heard
