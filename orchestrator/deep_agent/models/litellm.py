"""Models through LiteLLM, without its prints, logs and requests for updates."""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from functools import cache, wraps
from typing import Any

import httpx
from google.adk.models import lite_llm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from ..adk_internals import import_litellm
from . import access, addresses
from .addresses import HOSTS
from .clients import NO_KEY, UNREACHABLE_URL, warm_up
from .errors import UnusableReply
from .replies import (
    chat_reason,
    check_is_stream,
    checked_reply,
    checked_stream,
    ending_failure,
    repaired,
)

UNGUARDED = frozenset({"aiohttp_openai", "petals", "vllm"})
"""LiteLLM's providers that make no requests which could be checked: they have a client of their own
(`aiohttp_openai`), or load a model into the worker."""

_LOGGERS = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router")


@cache
def load() -> None:
    """Import LiteLLM; takes seconds."""
    # Else it fetches a table from the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault(
        "LITELLM_MODE", "PRODUCTION"
    )  # else it loads a `.env` of the folders above
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.disabled = True  # its records contain requests
    import_litellm()
    import litellm  # noqa: PLC0415 - see above

    litellm.suppress_debug_info = True  # a banner on standard output with each error
    litellm.telemetry = False
    for logger in loggers:
        logger.handlers.clear()  # ADK directs them to stdout, which is for payload
    _check_requests()


def _check_requests() -> None:
    """Have the requests of LiteLLM's clients checked, those that follow a redirect included.

    LiteLLM makes its clients in many places and with transports of three kinds; all requests of a
    client of httpx, and each step of a redirect, go through one of them.
    """
    from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport  # noqa: PLC0415

    for kind, name in (
        (httpx.AsyncHTTPTransport, "handle_async_request"),
        (httpx.HTTPTransport, "handle_request"),
        (LiteLLMAiohttpTransport, "handle_async_request"),
    ):
        setattr(kind, name, _checked(getattr(kind, name)))


def _checked(send: Any) -> Any:
    """Return a method of a transport that sends only what the running call may send."""

    @wraps(send)
    def checked(transport: Any, request: httpx.Request) -> Any:
        if (destinations := addresses.current.get()) is not None:
            destinations.check(str(request.url))
        return send(transport, request)

    return checked


def _on_unreachable_url() -> lite_llm.LiteLlm:
    return lite_llm.LiteLlm(
        "openai/gpt-4o", api_base=UNREACHABLE_URL, api_key=NO_KEY, max_retries=0, num_retries=0
    )


class CheckedClient(lite_llm.LiteLLMClient):
    """ADK's client of LiteLLM, with replies that ADK's class can read."""

    def _checked_requests(self, model: str) -> contextlib.AbstractContextManager[None]:
        """Return the context of a request; of a program's own model it may go anywhere."""
        del model
        return contextlib.nullcontext()

    async def acompletion(self, model: Any, messages: Any, tools: Any, **more: Any) -> Any:
        """Send a request; `checked_reply` says what is raised besides LiteLLM's own errors."""
        attempts = {"max_retries": 0, "num_retries": 0}
        with self._checked_requests(model):
            answer = await super().acompletion(model, messages, tools, **{**attempts, **more})
        if not more.get("stream"):
            for choice in getattr(answer, "choices", None) or ():
                fields = getattr(choice, "provider_specific_fields", None) or {}
                choice.finish_reason = fields.get("native_finish_reason") or choice.finish_reason
            return checked_reply(answer, repaired)
        source = getattr(answer, "completion_stream", None)
        if not isinstance(source, AsyncIterable):
            return checked_stream(answer, repaired)
        await check_is_stream(source)
        reasons: list[str] = []
        answer.completion_stream = _without_reasons(source, reasons)
        return checked_stream(_with_reason(answer, reasons), repaired)


class NamedClient(CheckedClient):
    """The client of a model that was named: its requests go to known and configured addresses."""

    def _checked_requests(self, model: str) -> contextlib.AbstractContextManager[None]:
        return addresses.limit_servers(find_destinations(model))


def find_destinations(model: str) -> addresses.Destinations:
    """Return where LiteLLM may send the requests of a model.

    Args:
        model: Its name, `provider/model`.
    """
    provider = model.partition("/")[0]
    service = access.find_service(model)
    own = addresses.Origin.of(service.address) if service and service.address else None
    origins = (*addresses.configured_origins(), *([own] if own else []))
    return addresses.Destinations(origins, HOSTS.get(provider, ()))


async def _without_reasons(chunks: AsyncIterable[Any], reasons: list[str]) -> AsyncIterator[Any]:
    """Yield a service's own chunks, without finish reasons that LiteLLM would take for others.

    Args:
        chunks: The chunks, in any form.
        reasons: Gets the unknown reasons, and that there was no chunk.
    """
    is_empty = True
    async for chunk in chunks:
        is_empty = False
        for choice in getattr(chunk, "choices", None) or ():
            try:
                chat_reason(choice.finish_reason)
            except UnusableReply:
                reasons.append(choice.finish_reason)
                choice.finish_reason = None
        yield chunk
    if is_empty:
        reasons.append("none")


async def _with_reason(chunks: AsyncIterable[Any], reasons: list[str]) -> AsyncIterator[Any]:
    """Yield LiteLLM's chunks, and then raise for a reason that it has not seen."""
    async for chunk in chunks:
        yield chunk
    if reasons:
        raise ending_failure(reasons[-1])


class QuietLiteLlm(lite_llm.LiteLlm):
    """A model through LiteLLM, which makes one attempt: ResilientModel retries."""

    def __init__(self, model: str) -> None:
        # Not every service supports every parameter; unsupported ones are left out.
        super().__init__(
            model=model, drop_params=True, llm_client=NamedClient(), **_own_server(model)
        )

    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`."""
        return access.key_variables(self.model)

    def preload(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Preloading.preload`; LiteLLM manages its clients itself."""
        del loop
        load()
        warm_up(_on_unreachable_url)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield ADK's responses, after loading LiteLLM in a thread."""
        await asyncio.to_thread(load)
        replies = super().generate_content_async(llm_request, stream=stream)
        async with contextlib.aclosing(replies):
            async for response in replies:
                yield response


def _own_server(model: str) -> dict[str, str]:
    """Return LiteLLM's arguments for a server of a person's own that it would not find."""
    service = access.find_service(model)
    if service is None or not service.is_own_server:
        return {}
    if service.address_variable in {"OLLAMA_HOST", ""}:
        return {"api_base": service.address}
    needs_any_key = bool(service.keys) and not any(map(os.environ.get, service.keys))
    return {"api_key": access.NO_KEY_NEEDED} if needs_any_key else {}


def checked(model: lite_llm.LiteLlm) -> lite_llm.LiteLlm:
    """Return a model of ADK's class whose replies are checked."""
    if type(model.llm_client) is not lite_llm.LiteLLMClient:
        return model  # a client of the program's own
    return model.model_copy(update={"llm_client": CheckedClient()})
