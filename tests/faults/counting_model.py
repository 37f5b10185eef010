"""A loopback model that replies from a script, and counts which requests it has answered."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.genai import types

from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from tests.integration.models.wires import Answer, Gemini, call, text
from tests.loopback import LoopbackHandler, gemini_environment, loopback_server

THINKS_SECONDS = 0.1
"""Most of a job's time is spent like this: a death comes mostly before an answer."""


@dataclass
class CountingModel:
    """What was answered."""

    url: str
    script: Path
    completed: Counter[str] = field(default_factory=Counter)
    """The requests whose answers went out whole to a client that was there, by conversation."""
    asked: list[tuple[str, int]] = field(default_factory=list)
    """The requests, as they came: their conversation, and how long it was."""

    def asked_again(self) -> list[tuple[str, int]]:
        """The requests that came although their conversation had been longer before."""
        longest, again = Counter[str](), []
        for conversation, length in self.asked:
            if length < longest[conversation]:
                again.append((conversation, length))
            longest[conversation] = max(longest[conversation], length)
        return again

    def environment(self) -> dict[str, str]:
        return gemini_environment(self.url)

    async def reply(self, contents: list[types.Content]) -> list[dict[str, Any]]:
        """The parts of the script's next reply."""
        model: Any = resolve_model(f"scripted:{self.script}", agent_name="any")
        parts: list[dict[str, Any]] = []
        async for response in model.generate_content_async(LlmRequest(contents=contents)):
            for part in response.content.parts:
                if part.function_call:
                    parts.append(call(part.function_call.name, **part.function_call.args))
                elif part.text:
                    parts.append(text(part.text))
        return parts


def counting_model(script: Path) -> AbstractContextManager[CountingModel]:
    """Serve on a port of 127.0.0.1."""
    return loopback_server(_Handler, lambda url: CountingModel(url, script))


class _Handler(LoopbackHandler):
    def post(self) -> None:
        request, state = self.read_json(), self.state
        contents = [types.Content.model_validate(one) for one in request["contents"]]
        conversation = str(contents[0].parts)
        state.asked.append((conversation, len(contents)))
        parts = asyncio.run(state.reply(contents))
        time.sleep(THINKS_SECONDS)
        answer = Gemini().whole(Answer(parts=parts))
        if _is_gone(self.connection):
            return
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_json(200, answer)
            state.completed[f"{len(contents)}: {conversation}"] += 1


def _is_gone(connection: socket.socket) -> bool:
    with suppress(OSError):
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    return True
