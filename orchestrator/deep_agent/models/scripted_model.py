r"""A model that replies from a YAML file: for the demo, tests and benchmarks.

    conversations:
      - agent: refactorer            # any agent when left out
        when: 'fix (\S+\.py)'      # a regular expression, searched for in the task
        system: 'Run the tests'     # another, searched for in the system instruction
        replies:
          - text: Reading {{1}}.
            calls: [{tool: read_file, args: {file_path: '/workspace/{{1}}'}}]
          - text: '## Summary …'

The first matching conversation is used. The reply's number is the number of the model's replies in
the request; a summary in it counts as many as it replaces, so a script continues after a summary.
No state is kept between calls, so any process can continue a conversation; only `error.times` is
counted, in the model object.

Texts may contain `{{task}}`, `{{agent}}`, `{{last_result}}` (JSON of the newest tool results),
`{{1}}`, `{{2}}` … (the groups of `when`, then those of `system`) and `{{started_1}}` … (the ids of
the tasks that `start_task` began). The item `{{started}}` of a list becomes all these ids.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from ...regular_files import read_regular_file
from ...valid_text import not_utf_8
from ..adk_internals import LlmCapabilities
from ..failures import ScriptFailed
from ..messages import above_summary, summed_up_replies
from ..prompts import FORKED_BEGINS

CHARACTERS_PER_TOKEN = 4
"""The usual rule of thumb, for replies without `usage`."""

CHUNK_CHARACTERS = 24
"""A streamed text has pieces of a few words, as from a real model."""

MAX_SCRIPT_BYTES = 4 * 1024**2
"""The largest file of a script: YAML of this size takes many seconds to read; a demo has some
kilobytes."""

_UNCOMPILED = "this is not a regular expression"

ALL_STARTED = "{{started}}"

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedCall(_Strict):
    """One tool call of a reply."""

    tool: str
    args: dict[str, JsonValue] = Field(default_factory=dict)
    id: str | None = None
    """The id, which some providers set; ADK creates one if it is missing."""


class ScriptedUsage(_Strict):
    """The usage that a reply reports."""

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)


class ScriptedError(_Strict):
    """An HTTP error in place of the reply, for the first `times` requests for this reply."""

    status: int = Field(ge=400, le=599)
    times: int = Field(default=1, ge=1)
    retry_after_seconds: float | None = Field(default=None, ge=0)


class ScriptedReply(_Strict):
    """One reply of the model."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    delay_seconds: float = Field(default=0, ge=0)
    usage: ScriptedUsage | None = None
    error: ScriptedError | None = None
    malformed: bool = False
    """The service reports that the model's call could not be parsed."""
    raises: str | None = Field(default=None, alias="raise")
    """The client raises RuntimeError with this text, as a bug would."""
    blocks_seconds: float = Field(default=0, ge=0)
    """The client blocks the event loop for so long, as a bug would."""


class Conversation(_Strict):
    """The model's replies to one kind of task."""

    agent: str | None = None
    when: str | None = None
    system: str | None = None
    replies: tuple[ScriptedReply, ...] = Field(min_length=1)

    @field_validator("when", "system")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(_UNCOMPILED) from error
        return pattern

    def match(self, agent: str, task: str, system: str = "") -> tuple[str, ...] | None:
        """Return the groups of `when` and `system` if the conversation matches, else None.

        Args:
            agent: The agent's name.
            task: The agent's task.
            system: Its system instruction.
        """
        if self.agent is not None and _same_name(self.agent) != _same_name(agent):
            return None
        in_task = re.search(self.when or "", task, re.DOTALL)
        in_system = re.search(self.system or "", system, re.DOTALL)
        if in_task is None or in_system is None:
            return None
        return tuple(group or "" for group in (*in_task.groups(), *in_system.groups()))


class Script(_Strict):
    """A file of conversations."""

    conversations: tuple[Conversation, ...] = Field(min_length=1)

    @classmethod
    def load(cls, path: Path) -> Script:
        """Read a script.

        Raises:
            ScriptFailed: The file is no regular one of bounded size, or no script; the message has
                its base name and the number of the line, and quotes nothing of it.
        """
        try:
            status = path.stat()
            return _loaded(path, (status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError as error:
            raise ScriptFailed(
                f"The script {path.name} cannot be read: {error.strerror}."
            ) from None


@lru_cache(maxsize=32)
def _loaded(path: Path, state: tuple[int, ...]) -> Script:
    del state  # part of the cache's key: a changed file is read again
    data = read_regular_file(path, MAX_SCRIPT_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ScriptFailed(f"The script {path.name} cannot be read: {not_utf_8(error)}.") from None
    try:
        return Script.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ScriptFailed(f"The script {path.name} is not YAML{where}.") from None
    except (ValueError, RecursionError) as error:  # also of YAML: a date or a number that is none
        raise ScriptFailed(f"The script {path.name} is no script{_place(text, error)}.") from None


def _place(text: str, error: Exception) -> str:
    """Return where a script is wrong, and why: in our words, and none of the file's."""
    if not isinstance(error, ValidationError):
        return ""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    why = _UNCOMPILED if fault["type"] == "value_error" else fault["msg"]
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in fault["loc"]:
        node = _child(node, step) or node
    return f", line {node.start_mark.line + 1 if node else 1}: {why}"


def _child(node: yaml.Node | None, step: int | str) -> yaml.Node | None:
    """Return a part of a list or mapping; None if there is none."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return next(iter(node.value[step : step + 1]), None)
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None


class ScriptedHttpError(Exception):
    """Like the exception of a provider's client for an HTTP error."""

    def __init__(self, error: ScriptedError) -> None:
        super().__init__(f"scripted HTTP {error.status}")
        self.status_code = error.status
        seconds = error.retry_after_seconds
        self.headers: Mapping[str, str] = {} if seconds is None else {"retry-after": str(seconds)}


class ScriptedModel(BaseLlm):
    """Replies to one agent's requests from a script."""

    script: Script | Path
    """A path is read at each call, in a thread, and parsed again if the file has changed."""
    agent_name: str
    source: str = "script"
    """The script's origin, for error messages."""
    _failed: Counter[tuple[int, int]] = PrivateAttr(default_factory=Counter)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {"model": f"scripted:{data.get('source', 'script')}", **data}
        return data

    @property
    def capabilities(self) -> LlmCapabilities:
        """Tools and an output schema may be used together."""
        return LlmCapabilities(output_schema_and_tools=True)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next reply.

        Raises:
            ScriptFailed: No conversation matches, or its replies are used up.
            ScriptedHttpError: The reply has an `error`.
            RuntimeError: The reply has a `raise`.
        """
        script = self.script
        if isinstance(script, Path):
            script = await asyncio.to_thread(Script.load, script)
        contents = _own(llm_request.contents)
        task = _task(contents)
        turn = sum(content.role == "model" or summed_up_replies(content) for content in contents)
        system = str(llm_request.config.system_instruction or "")
        index, groups = self._conversation(script, task, system)
        reply = self._reply(script, index, turn)
        await asyncio.sleep(reply.delay_seconds)
        if reply.blocks_seconds:
            time.sleep(reply.blocks_seconds)  # noqa: ASYNC251 - blocking is its purpose
        self._fail_if_scripted(reply, (index, turn))
        values = {"task": task, "agent": self.agent_name, "last_result": _last_result(llm_request)}
        values |= {str(number): group for number, group in enumerate(groups, start=1)}
        values |= _started(llm_request)
        content = _content(reply, values)
        if stream:
            for chunk in _chunks(content):
                yield LlmResponse(content=chunk, partial=True)
        yield _response(reply, content, llm_request)

    def _conversation(self, script: Script, task: str, system: str) -> tuple[int, tuple[str, ...]]:
        for index, conversation in enumerate(script.conversations):
            groups = conversation.match(self.agent_name, task, system)
            if groups is not None:
                return index, groups
        raise ScriptFailed(
            f"{self.source} has no conversation for this task of agent {self.agent_name}."
        )

    def _reply(self, script: Script, index: int, turn: int) -> ScriptedReply:
        replies = script.conversations[index].replies
        if turn >= len(replies):
            raise ScriptFailed(
                f"{self.source}: conversations.{index} for agent {self.agent_name} has "
                f"no reply {turn + 1}: the script ran out after {len(replies)}."
            )
        return replies[turn]

    def _fail_if_scripted(self, reply: ScriptedReply, key: tuple[int, int]) -> None:
        if reply.raises is not None:
            raise RuntimeError(reply.raises)
        if reply.error is not None and self._failed[key] < reply.error.times:
            self._failed[key] += 1
            raise ScriptedHttpError(reply.error)


def _same_name(agent: str) -> str:
    """Return the name for comparison: ADK has identifiers, people write `general-purpose`."""
    return agent.replace("-", "_").lower()


def _own(contents: Sequence[types.Content]) -> Sequence[types.Content]:
    """Return the messages of the agent itself, from the task that followed another's messages."""
    begins = [
        index
        for index, content in enumerate(contents)
        if any((part.text or "").startswith(FORKED_BEGINS) for part in content.parts or [])
    ]
    return contents[begins[-1] :] if begins else contents


def _task(contents: Sequence[types.Content]) -> str:
    """Return the user's first message, without a summary below it."""
    for content in contents:
        texts = [part.text for part in above_summary(content) if part.text]
        if content.role == "user" and texts:
            return "\n".join(texts).removeprefix(FORKED_BEGINS)
    return ""


def _last_result(request: LlmRequest) -> str:
    for content in reversed(request.contents):
        results = [part.function_response for part in content.parts or [] if part.function_response]
        if results:
            return json.dumps(
                [result.response for result in results], ensure_ascii=False, default=str
            )
    return ""


def _started(request: LlmRequest) -> dict[str, str]:
    """Return the ids of the tasks that the agent has started, by placeholder."""
    answers = [
        part.function_response.response or {}
        for content in request.contents
        for part in content.parts or []
        if part.function_response and part.function_response.name == "start_task"
    ]
    ids = dict.fromkeys(str(answer["task_id"]) for answer in answers if "task_id" in answer)
    return {f"started_{number}": job_id for number, job_id in enumerate(ids, start=1)}


def _filled(value: JsonValue, values: Mapping[str, str]) -> JsonValue:
    """Return the value with its placeholders replaced; unknown ones remain."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), value)
    if isinstance(value, list):
        started = [job_id for name, job_id in values.items() if name.startswith("started_")]
        lists = [started if item == ALL_STARTED else [_filled(item, values)] for item in value]
        return [item for items in lists for item in items]
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value


def _content(reply: ScriptedReply, values: Mapping[str, str]) -> types.Content:
    parts = [types.Part(text=str(_filled(reply.text, values)))] if reply.text else []
    for call in reply.calls:
        arguments = {key: _filled(value, values) for key, value in call.args.items()}
        parts.append(
            types.Part(function_call=types.FunctionCall(id=call.id, name=call.tool, args=arguments))
        )
    return types.Content(role="model", parts=parts)


def _chunks(content: types.Content) -> Iterator[types.Content]:
    for part in content.parts or []:
        text = part.text or ""
        for at in range(0, len(text), CHUNK_CHARACTERS):
            piece = types.Part(text=text[at : at + CHUNK_CHARACTERS])
            yield types.Content(role="model", parts=[piece])


def _response(reply: ScriptedReply, content: types.Content, request: LlmRequest) -> LlmResponse:
    usage = reply.usage or ScriptedUsage(
        input_tokens=_tokens(request.contents), output_tokens=_tokens([content])
    )
    metadata = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=usage.input_tokens,
        candidates_token_count=usage.output_tokens,
        cached_content_token_count=usage.cached_tokens,
        total_token_count=usage.input_tokens + usage.output_tokens,
    )
    if reply.malformed:
        return LlmResponse(
            error_code="MALFORMED_FUNCTION_CALL",
            error_message="scripted: the call could not be parsed",
            finish_reason=types.FinishReason.MALFORMED_FUNCTION_CALL,
            usage_metadata=metadata,
        )
    return LlmResponse(
        content=content, finish_reason=types.FinishReason.STOP, usage_metadata=metadata
    )


def _tokens(contents: list[types.Content]) -> int:
    parts = (part for content in contents for part in content.parts or [])
    return sum(map(_characters, parts)) // CHARACTERS_PER_TOKEN


def _characters(part: types.Part) -> int:
    call, result = part.function_call, part.function_response
    texts = (part.text, call and call.args, result and result.response)
    return sum(len(str(text)) for text in texts if text)
