"""`python -m tests.integration.worker.recording_worker`: keeps what its scripted model is asked.

Each request becomes a line of JSON in the file FANOUT_TEST_REQUESTS.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.deep_agent import ScriptedModel
from fanout.workers.__main__ import main

REQUESTS = Path(os.environ["FANOUT_TEST_REQUESTS"])
generate = ScriptedModel.generate_content_async


async def recording(
    model: ScriptedModel, llm_request: LlmRequest, stream: bool = False
) -> AsyncGenerator[LlmResponse, None]:
    """Record the request, then reply to it."""
    _record(llm_request)
    async for reply in generate(model, llm_request, stream):
        yield reply


def _record(request: LlmRequest) -> None:
    asked = {
        "system": str(request.config.system_instruction),
        "said": [_said(part) for content in request.contents for part in content.parts or []],
    }
    with REQUESTS.open("a") as file:
        file.write(json.dumps(asked) + "\n")


def _said(part: types.Part) -> str:
    if part.function_call is not None:
        return f"call {part.function_call.name}"
    if part.function_response is not None:
        return f"result {json.dumps(part.function_response.response)}"
    return str(part.text)


if __name__ == "__main__":
    ScriptedModel.generate_content_async = recording
    main()
