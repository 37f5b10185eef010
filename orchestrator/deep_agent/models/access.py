"""What a model needs to be reached: a package, a key, an address. No client is loaded to say it.

Addresses and keys are read from the variables that the services' own tools read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from .facts import PROVIDERS

CHAT = "chat/"
"""The prefix of models of any server that speaks OpenAI's Chat Completions."""

RESPONSES = "responses/"
"""The prefix of models that are asked through OpenAI's Responses."""

OLLAMA = "ollama/"
"""The prefix of models of Ollama, which are asked through its Chat Completions."""

OLLAMA_PORT = 11434

LITELLM = "litellm"
"""The name of the service of all models that are asked through LiteLLM and have no other one."""

NO_KEY_NEEDED = "none"
"""Sent as the key to a server of a person's own: it ignores it, or insists on any."""

CONNECT_SECONDS = 1.0
"""The time for a check whether this machine's own server listens; it answers within milliseconds.
"""

_OWN_HOSTS = ("openai.com", "anthropic.com", "googleapis.com")
"""The domains of the services that refuse every request without a key."""

CREDENTIALS_OF_GOOGLE = (
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_ENTERPRISE",
)
_PREFIXES = (*PROVIDERS.items(), ("gemma-", "google"))
CREDENTIALS_OF_ANTHROPIC = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")

_LITELLM_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "dashscope": ("DASHSCOPE_API_KEY",),
    "deepinfra": ("DEEPINFRA_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": (
        "FIREWORKS_AI_API_KEY",
        "FIREWORKS_API_KEY",
        "FIREWORKSAI_API_KEY",
        "FIREWORKS_AI_TOKEN",
    ),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshot": ("MOONSHOT_API_KEY",),
    "nebius": ("NEBIUS_API_KEY",),
    "novita": ("NOVITA_API_KEY",),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY"),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "replicate": ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN"),
    "sambanova": ("SAMBANOVA_API_KEY",),
    "together_ai": (
        "TOGETHERAI_API_KEY",
        "TOGETHER_API_KEY",
        "TOGETHER_AI_API_KEY",
        "TOGETHER_AI_TOKEN",
    ),
    "volcengine": ("VOLCENGINE_API_KEY", "ARK_API_KEY"),
    "xai": ("XAI_API_KEY",),
}
"""LiteLLM's providers that take nothing but a key, with the variables it reads. One that is not
listed may have other credentials, or need none, and is not refused for want of a key."""


@dataclass(frozen=True)
class ModelService:
    """How the models of a service are reached."""

    package: str = ""
    """The package of its client; empty: it is always installed."""
    extra: str = ""
    """The extra of this distribution that installs it."""
    keys: tuple[str, ...] = ()
    """The variables of which one has to be set; the first is the one to recommend. Empty: none."""
    addresses: tuple[str, ...] = ()
    """The variables of its base address, in the order in which they are read."""
    default_address: str = ""
    """The address of a server on this machine."""

    @property
    def is_installed(self) -> bool:
        """Whether its client is installed."""
        return not self.package or find_spec(self.package) is not None

    @property
    def address_variable(self) -> str:
        """The variable that names its base address; empty if none is set."""
        return next((name for name in self.addresses if os.environ.get(name)), "")

    @property
    def address(self) -> str:
        """Its base address as it is set, or that of this machine; empty: the service's own."""
        variable = self.address_variable
        given = os.environ.get(variable, "").strip() if variable else self.default_address
        return ollama_address(given) if variable == "OLLAMA_HOST" else given

    @property
    def is_own_server(self) -> bool:
        """Whether its base address is another one than that of the service that needs the key."""
        host = _host(self.address)
        return bool(host) and not f".{host}".endswith(tuple(f".{known}" for known in _OWN_HOSTS))

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables of which one has to be set now: none for a server of a person's own."""
        return () if self.is_own_server else self.keys


_OPENAI = ModelService(
    "openai", "openai", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE")
)
_SERVICES = {
    "google": ModelService("", "", CREDENTIALS_OF_GOOGLE, ("GOOGLE_GEMINI_BASE_URL",)),
    "anthropic": ModelService(
        "anthropic",
        "anthropic",
        CREDENTIALS_OF_ANTHROPIC,
        ("ANTHROPIC_BASE_URL",),
    ),
    "openai": _OPENAI,
}
_OLLAMA = ModelService("openai", "openai", (), ("OLLAMA_HOST",), f"http://127.0.0.1:{OLLAMA_PORT}")


def find_service(name: str) -> ModelService | None:
    """Return how a model is reached; None for one that is known to ADK's registry only, or to none.

    Args:
        name: One name as for `resolve_model`.
    """
    if name.startswith("scripted:"):
        return ModelService()
    if name.startswith((CHAT, RESPONSES)):
        return _OPENAI
    if name.startswith(OLLAMA):
        return _OLLAMA
    for begin, provider in _PREFIXES:
        if name.startswith(begin):
            is_on_vertex = provider == "anthropic" and is_claude_on_vertex()
            return None if is_on_vertex else _SERVICES[provider]
    provider = _litellm_provider(name)
    return _of_litellm(provider) if provider else None


def key_variables(name: str) -> tuple[str, ...]:
    """Return the variables of which one has to be set now to reach a model; empty for none."""
    found = find_service(name)
    return () if found is None else found.key_variables


def is_claude_on_vertex() -> bool:
    """Return whether Claude is asked on Vertex AI, with Google's credentials, as ADK does."""
    has_key = any(os.environ.get(name) for name in CREDENTIALS_OF_ANTHROPIC)
    return not has_key and bool(os.environ.get("GOOGLE_CLOUD_PROJECT"))


def uses_litellm(name: str) -> bool:
    """Return whether a model is asked through LiteLLM.

    `openai/NAME` is asked through OpenAI's own client where only that is installed.
    """
    found = find_service(name)
    return found is not None and found.package == "litellm"


def access_fault(name: str) -> str | None:
    """Return a sentence about why one model cannot be reached from here; None if nothing is known.

    Nothing is sent to the model. Only whether its server listens is looked at, if that is on this
    machine; it takes `CONNECT_SECONDS` at most.

    Args:
        name: One name as for `resolve_model`.
    """
    found = find_service(name)
    fault = "" if found is None else _fault(found, needs_address=name.startswith(CHAT))
    return f"{name} {fault}" if fault else None


def service_name(name: str) -> str:
    """Return the name of the service that a model is asked at, as in `service_faults`.

    Args:
        name: One name as for `resolve_model`.

    Returns:
        Empty for a model that needs nothing, and for one of no service that is known here.
    """
    for prefix in (CHAT, RESPONSES, OLLAMA):
        if name.startswith(prefix):
            return prefix.removesuffix("/")
    for begin, provider in _PREFIXES:
        if name.startswith(begin):
            return provider
    provider = _litellm_provider(name)
    return provider if provider in _LITELLM_KEYS or not provider else LITELLM


def service_faults() -> dict[str, str]:
    """Return why models of services cannot be reached from here, by the services' names.

    Each is a sentence without its subject, the model. Services of which nothing is known to be
    missing are left out. It may wait `CONNECT_SECONDS` for a server on this machine.
    """
    chat, responses, ollama = (prefix.removesuffix("/") for prefix in (CHAT, RESPONSES, OLLAMA))
    models = {
        **{name: f"{name}/model" for name in (chat, responses, ollama, LITELLM, *_LITELLM_KEYS)},
        **{provider: f"{begin}model" for begin, provider in _PREFIXES},
    }
    faults = {
        name: _fault(found, needs_address=name == chat)
        for name, model in models.items()
        if (found := find_service(model)) is not None
    }
    return {name: fault for name, fault in faults.items() if fault}


def lacking_package(name: str) -> str | None:
    """Return a sentence if the client of a model's service is not installed; None otherwise."""
    found = find_service(name)
    fault = "" if found is None else _package_fault(found)
    return f"{name} {fault}" if fault else None


def _fault(service: ModelService, *, needs_address: bool) -> str:
    """Return why a service cannot be reached, as a sentence without its subject; empty: it can."""
    if fault := _package_fault(service) or _address_fault(service):
        return fault
    if (variables := service.key_variables) and not any(map(os.environ.get, variables)):
        if needs_address:
            return f"needs {service.addresses[0]}, the address of its server, in the environment."
        return f"needs {variables[0]} in the environment."
    return _unreached(service)


def _package_fault(service: ModelService) -> str:
    if service.is_installed:
        return ""
    return (
        f"needs the package {service.package}; install it with "
        f"`pip install 'fanout-orchestrator[{service.extra}]'`."
    )


def ollama_address(host: str) -> str:
    """Return the base address that OLLAMA_HOST means, in every form that Ollama takes."""
    scheme, separator, rest = host.strip().rpartition("://")
    where, slash, path = rest.partition("/")
    name, _, port = where.rpartition(":") if _has_port(where) else (where, "", "")
    default = {"http": "80", "https": "443"}.get(scheme, str(OLLAMA_PORT))
    name = "127.0.0.1" if name in {"", "0.0.0.0", "[::]"} else name  # noqa: S104 - where it listens
    path = f"{slash}{path}".rstrip("/")
    return f"{scheme if separator else 'http'}://{name}:{port or default}{path}"


def is_this_machine(host: str) -> bool:
    """Return whether a host's name or address is that of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def _litellm_provider(name: str) -> str:
    """Return the provider in a name of LiteLLM's; empty for a name of another kind."""
    provider, slash, _ = name.partition("/")
    is_one = slash and provider.isidentifier() and provider not in {"projects", "apigee"}
    return provider if is_one else ""


def _of_litellm(provider: str) -> ModelService:
    if provider == "openai":
        service = ModelService("litellm", "litellm", _OPENAI.keys, _OPENAI.addresses)
        return service if service.is_installed or not _OPENAI.is_installed else _OPENAI
    if provider == "ollama_chat":
        addresses, default = ("OLLAMA_API_BASE", "OLLAMA_HOST"), _OLLAMA.default_address
        return ModelService("litellm", "litellm", (), addresses, default)
    keys = _LITELLM_KEYS.get(provider, ())
    return ModelService("litellm", "litellm", keys, tuple(_address_names(provider)))


def _address_names(provider: str) -> Iterator[str]:
    if provider == "anthropic":
        yield "ANTHROPIC_BASE_URL"
    yield f"{provider.upper()}_API_BASE"


def _address_fault(service: ModelService) -> str:
    if not service.address or _host(service.address):
        return ""
    return (
        f"has no usable address: {service.address_variable} has to begin with http:// or https:// "
        "and name a host."
    )


def _unreached(service: ModelService) -> str:
    """Return a sentence without its subject if a server is on this machine and does not listen.

    Other machines are not asked: they may be reached through a proxy.
    """
    if not is_this_machine(_host(service.address)):
        return ""
    parts = urlsplit(service.address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((str(parts.hostname), port), CONNECT_SECONDS):
            return ""
    except TimeoutError:  # it may be busy
        return ""
    except OSError:
        origin = service.address_variable or "the default"
        where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return f"is not reached: no server listens at {where} ({origin})."


def _host(address: str) -> str:
    """Return the host of a base address; empty for what is none."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        return ""
    return (parts.hostname or "").lower() if parts.scheme in {"http", "https"} else ""


def _has_port(where: str) -> bool:
    return where.rpartition(":")[2].isdecimal() and not where.endswith("]")


@runtime_checkable
class KeyedModel(Protocol):
    """A model that needs a key in the environment."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables of which one has to be set; empty for none."""


def missing_key(model: object, name: str) -> str | None:
    """Return a sentence about the key that a model needs and the environment does not have.

    Args:
        model: The model.
        name: Its name as it was requested.
    """
    variables = model.key_variables if isinstance(model, KeyedModel) else ()
    if not variables or any(os.environ.get(variable) for variable in variables):
        return None
    return f"{name} needs {variables[0]} in the environment."
