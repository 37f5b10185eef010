"""The requests of models go to known services and to configured addresses, whatever their names."""

from __future__ import annotations

import asyncio
import importlib
import re
from contextvars import ContextVar

import httpx
import pytest

from fanout.orchestrator.deep_agent.failures import ModelDenied, ModelNotConfigured
from fanout.orchestrator.deep_agent.models.addresses import HOSTS, Destinations, Origin, current
from fanout.orchestrator.deep_agent.models.resolve import resolve_model

pytestmark = pytest.mark.blocks_loop("LiteLLM reads files on the loop that only it runs on")

KEYS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "CLOUDFLARE_ACCOUNT_ID", "HF_TOKEN"),
    *("SNOWFLAKE_JWT", "SNOWFLAKE_ACCOUNT_ID", "PREDIBASE_TENANT_ID", "WATSONX_PROJECT_ID"),
)
NOT_KNOWN = {
    *("docker_model_runner", "langflow", "langgraph", "lemonade", "llamafile"),
    "oobabooga",
}
"""They have no host but one on this machine, or that of the name."""
OLLAMA = Origin("http", "127.0.0.1", 11434)
OTHERS_HOST = {"huggingface", "replicate", "sagemaker", "text-completion-codestral"}
"""They also look for a model's template at huggingface.co, which is not theirs."""
SIGNS_IN = {
    "chatgpt",
    "github_copilot",
    "gigachat",
    "sap",
    "vertex_ai",
    "vertex_ai_beta",
    "xai_oauth",
}
"""They ask a service for credentials first, some of them a person."""


@pytest.mark.parametrize(
    ("asked", "is_sent"),
    [
        ("http://gateway.example:8000/v1/x", True),
        ("HTTP://Gateway.EXAMPLE.:8000/y", True),
        ("http://gateway.example:8001/", False),
        ("https://gateway.example:8000/", False),
        ("http://plain.example/", True),
        ("https://plain.example/", True),
        ("http://plain.example:443/", False),
        ("https://api.eu-1.example.com/x", True),
        ("https://api.eu.1.example.com/", False),
        ("https://api.x@evil.example/.example.com", False),
        ("https://api.evil.example/.example.com", False),
        ("https://api.eu-1.example.com:8443/", False),
        ("http://api.eu-1.example.com/", False),
        ("http://127.0.0.1:8000/", False),
        ("http://[::1]/", False),
        ("file:///etc/passwd", False),
        ("http://[", False),
    ],
)
def test_a_request_goes_to_a_configured_server_or_to_a_known_host(
    asked: str, is_sent: bool
) -> None:
    own = ("http://gateway.example:8000/v1", "http://plain.example")
    origins = tuple(filter(None, map(Origin.of, own)))
    destinations = Destinations(origins, ("api.*.example.com",))

    if is_sent:
        destinations.check(asked)
    else:
        with pytest.raises(ModelDenied, match="was not sent"):
            destinations.check(asked)


@pytest.mark.parametrize("provider", ["aiohttp_openai", "petals", "vllm"])
def test_a_provider_whose_requests_cannot_be_checked_is_refused(provider: str) -> None:
    pytest.importorskip("fanout.orchestrator.deep_agent.models.litellm")
    with pytest.raises(ModelNotConfigured, match=f"{provider} of LiteLLM cannot be used"):
        resolve_model(f"{provider}/x", agent_name="a")


NAMES = ("x", "http://127.0.0.1:9/x", "a.example/y:1:z/x")

asking: ContextVar[str] = ContextVar("asking")
"""The provider that is asked."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """What LiteLLM's clients ask, which is checked and never answered: provider and address."""
    ours = pytest.importorskip("fanout.orchestrator.deep_agent.models.litellm")
    ours.load()
    transports = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport")
    found: set[tuple[str, str]] = set()

    def sent(_: object, request: httpx.Request) -> None:
        assert current.get() is not None
        found.add((asking.get(), str(request.url)))
        raise httpx.ConnectError("not sent by the test")

    for kind, name in (
        (httpx.AsyncHTTPTransport, "handle_async_request"),
        (httpx.HTTPTransport, "handle_request"),
        (transports.LiteLLMAiohttpTransport, "handle_async_request"),
    ):
        monkeypatch.setattr(kind, name, ours._checked(sent))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_provider_of_litellm_asks_an_address_that_is_not_its_own(
    asked: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = importlib.import_module("fanout.orchestrator.deep_agent.models.litellm")
    listed = importlib.import_module("litellm").provider_list
    known = {str(getattr(each, "value", each)) for each in listed}
    providers = sorted(known - ours.UNGUARDED - SIGNS_IN)
    for name in (*KEYS, *(re.sub(r"\W", "_", each).upper() + "_API_KEY" for each in providers)):
        monkeypatch.setenv(name, "no-secret")
    monkeypatch.setenv("AWS_REGION_NAME", "us-east-1")
    refused: dict[str, str] = {}
    at_once = asyncio.Semaphore(16)

    async def ask(provider: str, name: str) -> None:
        asking.set(provider)
        question = [{"role": "user", "content": "x"}]
        async with at_once:
            try:
                async with asyncio.timeout(60):
                    await ours.NamedClient().acompletion(f"{provider}/{name}", question, None)
            except ModelDenied as denied:
                refused[provider] = str(denied)
            except Exception:  # noqa: BLE001, S110 - its own words for what was not sent
                pass

    await asyncio.gather(*(ask(each, name) for each in providers for name in NAMES))

    for provider, address in asked:
        own = (OLLAMA,) if provider.startswith("ollama") else ()
        Destinations(own, HOSTS.get(provider, ())).check(address)
    assert len({provider for provider, _ in asked}) > 80
    assert refused.keys() >= NOT_KNOWN
    lacking = refused.keys() - NOT_KNOWN - OTHERS_HOST
    assert not lacking, "addresses.py lacks a host of these providers"
