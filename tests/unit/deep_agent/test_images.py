"""Images that a tool returned reach the model as images, and the session keeps S2's result."""

import base64
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.create import create_deep_agent
from fanout.orchestrator.deep_agent.failures import ModelRefused
from fanout.orchestrator.deep_agent.tools.images import MAX_IMAGES_IN_VIEW
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

PNG = b"\x89PNG\r\n\x1a\n"


class Watched(BaseLlm):
    """A scripted model that keeps the requests it was given."""

    model: str = "watched"
    inner: Any
    requests: list[LlmRequest] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(llm_request.model_copy(deep=True))
        async for response in self.inner.generate_content_async(llm_request, stream):
            yield response


def watched(turns: Sequence[Sequence[str]], name: str = "watched") -> Watched:
    """A model that reads these files, turn by turn."""
    replies = [{"calls": [call("read_file", file_path=path) for path in turn]} for turn in turns]
    return Watched(model=name, inner=scripted([*replies, {"text": "done"}]))


def media(request: LlmRequest) -> list[tuple[str | None, bytes | None]]:
    """The images of a request, with the label before each."""
    parts = [part for content in request.contents for part in content.parts or []]
    return [
        (before.text, part.inline_data.data) for before, part in pairwise(parts) if part.inline_data
    ]


def notes(request: LlmRequest) -> list[str]:
    parts = [part for content in request.contents for part in content.parts or []]
    answers = [part.function_response.response or {} for part in parts if part.function_response]
    return [
        answer["content"]["note"] for answer in answers if isinstance(answer.get("content"), dict)
    ]


@pytest.fixture
def backend(tmp_path) -> DirectoryBackend:
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(PNG + bytes([number]))
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    return DirectoryBackend(tmp_path)


async def test_the_model_is_shown_the_image_after_the_results(backend) -> None:
    model = watched([["/workspace/1.png", "/workspace/2.png"]])
    run = await Run(model, backend=backend).to_end()

    request = model.requests[-1]

    assert media(request) == [
        ("Image 1, from a tool's result:", PNG + b"\1"),
        ("Image 2, from a tool's result:", PNG + b"\2"),
    ]
    assert notes(request) == [
        "image 1, shown in the next message",
        "image 2, shown in the next message",
    ]
    assert [content.role for content in request.contents] == ["user", "model", "user", "user"]
    assert base64.b64encode(PNG).decode()[:10] not in request.model_dump_json(
        include={"contents": {"__all__": {"parts": {"__all__": {"function_response"}}}}}
    )
    assert run.text == "done"


async def test_the_session_keeps_s2s_result(backend) -> None:
    run = await Run(watched([["/workspace/1.png"], ["/workspace/2.png"]]), backend=backend).to_end()
    assert run.results[0] == {
        "status": "success",
        "content": {
            "type": "image",
            "media_type": "image/png",
            "data": base64.b64encode(PNG + b"\1").decode(),
        },
    }


async def test_only_the_newest_images_stay_in_view_and_the_others_leave_a_note(backend) -> None:
    model = watched([[f"/workspace/{number}.png"] for number in range(5)])
    await Run(model, backend=backend).to_end()
    request = model.requests[-1]
    assert [data for _, data in media(request)] == [PNG + bytes([number]) for number in (2, 3, 4)]
    assert len(media(request)) == MAX_IMAGES_IN_VIEW
    assert [note.startswith("not shown any more") for note in notes(request)] == [
        True,
        True,
        False,
        False,
        False,
    ]


async def test_a_request_without_images_is_left_alone(backend) -> None:
    model = watched([["/workspace/none.png"]])
    await Run(model, backend=backend).to_end()
    assert media(model.requests[-1]) == []
    assert len(model.requests[-1].contents) == 3


async def test_gemini_is_not_sent_what_it_refuses(backend) -> None:
    model = watched([["/workspace/a.gif"]], name="gemini-2.5-flash")
    await Run(model, backend=backend).to_end()
    assert media(model.requests[-1]) == []
    assert notes(model.requests[-1]) == ["this model cannot look at this kind of image"]


class Picky(Watched):
    """Rejects requests that show a certain image, as providers do with one that is broken."""

    refuses: bytes = PNG + b"\1"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if any(data == self.refuses for _, data in media(llm_request)):
            self.requests.append(llm_request.model_copy(deep=True))
            raise ModelRefused("picky refused the request (400: could not process image).")
        async for response in super().generate_content_async(llm_request, stream):
            yield response


async def test_a_run_goes_on_without_images_that_the_provider_refuses(backend) -> None:
    turns = [["/workspace/0.png", "/workspace/1.png"], ["/workspace/2.png"]]
    replies = [{"calls": [call("read_file", file_path=path) for path in turn]} for turn in turns]
    # The script counts the replies in the conversation, the one that stands for the refused request
    # too.
    model = Picky(inner=scripted([replies[0], {"text": "skipped"}, replies[1], {"text": "done"}]))
    run = await Run(model, backend=backend).to_end()

    refused, after, last = model.requests[1:]
    assert len(media(refused)) == 2
    assert media(after) == []
    assert [note.split(":")[0] for note in notes(after)] == ["left out", "left out"]
    assert media(last) == [("Image 3, from a tool's result:", PNG + b"\2")]
    assert any("images was refused" in str(result.get("error")) for result in run.results)
    assert run.text == "done"


async def test_a_users_own_image_that_is_refused_is_tried_once_more_and_then_ends_the_run(
    backend,
) -> None:
    model = Picky(inner=scripted([{"text": "never"}]))
    agent = create_deep_agent(model, backend=backend)
    runner = InMemoryRunner(agent=agent, app_name="fanout")
    session = await runner.session_service.create_session(app_name="fanout", user_id="u")
    look = types.Part(text="look")
    image = types.Part(
        inline_data=types.Blob(data=Picky.model_fields["refuses"].default, mime_type="image/png")
    )
    message = types.Content(role="user", parts=[look, image])
    with pytest.raises(ModelRefused):
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
    assert len(model.requests) == 2


async def test_a_request_without_images_that_is_refused_ends_the_run(backend) -> None:
    class Refusing(Watched):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            del llm_request, stream
            raise ModelRefused("no")
            yield LlmResponse()

    with pytest.raises(ModelRefused):
        await Run(Refusing(inner=None), backend=backend).to_end()


async def test_a_result_that_only_looks_like_an_image_ends_nothing(backend) -> None:
    async def odd() -> dict[str, Any]:
        """A tool of somebody else."""
        return {"content": {"type": "image", "media_type": "image/png", "data": "not base64!"}}

    model = Watched(inner=scripted([{"calls": [call("odd")]}, {"text": "done"}]))
    run = await Run(model, tools=[odd], backend=backend).to_end()
    assert run.text == "done"
    assert notes(model.requests[-1]) == ["this model cannot look at this kind of image"]
