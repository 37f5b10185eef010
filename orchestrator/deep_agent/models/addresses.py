"""Where requests of LiteLLM's models may go: to services' own hosts and configured addresses.

A model's name comes from jobs, and an answer from anywhere. Neither may lead a request to another
host, for example to what listens on a worker's own machine: an address that a client derives from
the name is refused, and so is a redirect. `HOSTS` are those that LiteLLM asks when no other address
is set; a test asks every provider of the installed LiteLLM, and compares where its requests go.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..failures import ModelDenied

HOSTS: Mapping[str, tuple[str, ...]] = {
    "abliteration": ("api.abliteration.ai",),
    "ai21": ("api.openai.com",),
    "ai21_chat": ("api.ai21.com",),
    "aihubmix": ("aihubmix.com",),
    "aiml": ("api.aimlapi.com",),
    "amazon_nova": ("api.nova.amazon.com",),
    "anthropic": ("api.anthropic.com",),
    "anthropic_text": ("api.anthropic.com",),
    "apertis": ("api.stima.tech",),
    "assemblyai": ("llm-gateway.assemblyai.com",),
    "baseten": ("inference.baseten.co", "*.api.baseten.co"),
    "bedrock": (
        "bedrock-runtime.*.amazonaws.com",
        "bedrock-runtime.*.amazonaws.com.cn",
        "bedrock-agent-runtime.*.amazonaws.com",
        "bedrock-agentcore.*.amazonaws.com",
        "bedrock-mantle.*.api.aws",
        "sts.*.amazonaws.com",
        "sts.amazonaws.com",
    ),
    "bedrock_mantle": ("bedrock-mantle.*.api.aws",),
    "bytez": ("api.bytez.com",),
    "cerebras": ("api.cerebras.ai",),
    "charity_engine": ("api.charityengine.services",),
    "chatgpt": ("chatgpt.com", "auth.openai.com"),
    "chutes": ("llm.chutes.ai",),
    "clarifai": ("api.clarifai.com",),
    "cloudflare": ("api.cloudflare.com",),
    "codestral": ("codestral.mistral.ai",),
    "cognition": ("api.cognition.ai",),
    "cohere": ("api.cohere.com", "api.cohere.ai"),
    "cohere_chat": ("api.cohere.com", "api.cohere.ai"),
    "cometapi": ("api.cometapi.com",),
    "compactifai": ("api.compactif.ai",),
    "cortecs": ("api.cortecs.ai",),
    "crusoe": ("managed-inference-api-proxy.crusoecloud.com",),
    "custom_openai": ("api.openai.com",),
    "darkbloom": ("api.darkbloom.dev",),
    "dashscope": ("dashscope.aliyuncs.com",),
    "datarobot": ("app.datarobot.com",),
    "deepinfra": ("api.deepinfra.com",),
    "deepseek": ("api.deepseek.com",),
    "edenai": ("api.edenai.run",),
    "empiriolabs": ("api.empiriolabs.ai",),
    "empower": ("app.empower.dev",),
    "fal_ai": ("fal.run", "queue.fal.run"),
    "featherless_ai": ("api.featherless.ai",),
    "fireworks_ai": ("api.fireworks.ai",),
    "friendliai": ("api.friendli.ai",),
    "galadriel": ("api.galadriel.com",),
    "gemini": ("generativelanguage.googleapis.com",),
    "gigachat": ("ngw.devices.sberbank.ru:9443", "gigachat.devices.sberbank.ru"),
    "github": ("models.inference.ai.azure.com",),
    "github_copilot": (
        "github.com",
        "api.github.com",
        "api.githubcopilot.com",
        "api.*.githubcopilot.com",
    ),
    "gmi": ("api.gmi-serving.com",),
    "gradient_ai": ("inference.do-ai.run",),
    "groq": ("api.groq.com",),
    "helicone": ("ai-gateway.helicone.ai",),
    "hosted_vllm": ("api.openai.com",),
    "huggingface": ("huggingface.co", "router.huggingface.co", "api-inference.huggingface.co"),
    "hyperbolic": ("api.hyperbolic.xyz",),
    "inception": ("api.inceptionlabs.ai",),
    "lambda_ai": ("api.lambda.ai",),
    "libertai": ("api.libertai.io",),
    "litellm_proxy": ("api.openai.com",),
    "llamagate": ("api.llamagate.dev",),
    "lm_studio": ("api.openai.com",),
    "maritalk": ("chat.maritaca.ai",),
    "meta": ("api.meta.ai",),
    "meta_llama": ("api.llama.com",),
    "minimax": ("api.minimax.io",),
    "mistral": ("api.mistral.ai",),
    "modelscope": ("api-inference.modelscope.cn",),
    "moonshot": ("api.moonshot.ai",),
    "morph": ("api.morphllm.com",),
    "nadir": ("api.getnadir.com",),
    "nano-gpt": ("nano-gpt.com",),
    "nebius": ("api.studio.nebius.ai",),
    "neosantara": ("api.neosantara.xyz",),
    "nlp_cloud": ("api.nlpcloud.io",),
    "novita": ("api.novita.ai",),
    "nscale": ("inference.api.nscale.com",),
    "nvidia_nim": ("integrate.api.nvidia.com",),
    "oci": ("inference.generativeai.*.oci.oraclecloud.com",),
    "openai": ("api.openai.com",),
    "openrouter": ("openrouter.ai",),
    "ovhcloud": ("oai.endpoints.kepler.ai.cloud.ovh.net",),
    "parasail": ("api.parasail.io",),
    "perplexity": ("api.perplexity.ai",),
    "pinstripes": ("pinstripes.io",),
    "poe": ("api.poe.com",),
    "predibase": ("serving.app.predibase.com",),
    "prism": ("api.prisminference.com",),
    "publicai": ("api.publicai.co",),
    "qwen_ai_platform": ("dashscope.aliyuncs.com",),
    "qwencloud": ("dashscope-intl.aliyuncs.com",),
    "reka": ("api.reka.ai",),
    "replicate": ("api.replicate.com",),
    "sagemaker": ("runtime.sagemaker.*.amazonaws.com", "runtime.sagemaker.*.amazonaws.com.cn"),
    "sagemaker_chat": ("runtime.sagemaker.*.amazonaws.com", "runtime.sagemaker.*.amazonaws.com.cn"),
    "sagemaker_nova": ("runtime.sagemaker.*.amazonaws.com", "runtime.sagemaker.*.amazonaws.com.cn"),
    "sail": ("api.sailresearch.com",),
    "sambanova": ("api.sambanova.ai",),
    "sarvam": ("api.sarvam.ai",),
    "scaleway": ("api.scaleway.ai",),
    "scx-ai": ("api.scx.ai",),
    "snowflake": ("*.snowflakecomputing.com", "*.*.snowflakecomputing.com"),
    "synthetic": ("api.synthetic.new",),
    "tencent": ("tokenhub-intl.tencentcloudmaas.com",),
    "tensormesh": ("serverless.tensormesh.ai",),
    "text-completion-codestral": ("codestral.mistral.ai",),
    "text-completion-inception": ("api.inceptionlabs.ai",),
    "text-completion-openai": ("api.openai.com",),
    "together_ai": ("api.together.ai", "api.together.xyz"),
    "v0": ("api.v0.dev",),
    "veniceai": ("api.venice.ai",),
    "vercel_ai_gateway": ("ai-gateway.vercel.sh",),
    "vertex_ai": (
        "aiplatform.googleapis.com",
        "*-aiplatform.googleapis.com",
        "aiplatform.*.rep.googleapis.com",
        "oauth2.googleapis.com",
    ),
    "vertex_ai_beta": (
        "aiplatform.googleapis.com",
        "*-aiplatform.googleapis.com",
        "aiplatform.*.rep.googleapis.com",
        "oauth2.googleapis.com",
    ),
    "volcengine": ("ark.cn-beijing.volces.com",),
    "wandb": ("api.inference.wandb.ai",),
    "watsonx": ("iam.cloud.ibm.com", "*.ml.cloud.ibm.com"),
    "watsonx_text": ("iam.cloud.ibm.com", "*.ml.cloud.ibm.com"),
    "xai": ("api.x.ai",),
    "xiaomi_mimo": ("api.xiaomimimo.com",),
    "xinference": ("api.openai.com",),
    "zai": ("api.z.ai",),
}
"""Provider -> hosts, asked with HTTPS at port 443 or the one named here. `*` is a part of one
label, for regions and accounts. A provider that is not here has no known host: its address has to
be set, and so has that of one on this machine (`llamafile`, `lemonade`, `langgraph` and the like):
a name would otherwise reach what listens there by chance."""

_DEFAULT_PORTS = {"http": 80, "https": 443}

_THIS_MACHINE = {"localhost", "::1"}
"""Other names of 127.0.0.1: clients write one for another."""

_ADDRESS_VARIABLE = re.compile(r"(?!FANOUT_).*_(?:BASE|URL|HOST|ENDPOINT|API)")
"""The names of variables with addresses, of whatever service: OPENAI_BASE_URL, AZURE_API_BASE,
OLLAMA_HOST, WATSONX_URL. Those of fanout itself are none of a model's."""


@dataclass(frozen=True)
class Origin:
    """A server: how it is spoken to, its host and its port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, address: str) -> Origin | None:
        """Return the server of an address of HTTP; None for what is none."""
        try:
            parts = urlsplit(address.strip())
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        except ValueError:
            return None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            return None
        host = parts.hostname.lower().rstrip(".")
        return cls(parts.scheme, "127.0.0.1" if host in _THIS_MACHINE else host, port)

    def is_same_server(self, other: Origin) -> bool:
        """Return whether another server is the same, or the same with TLS at the usual ports."""
        is_secured = (self.port, other.port) == (80, 443) and other.scheme == "https"
        return self.host == other.host and (
            (self.scheme, self.port) == (other.scheme, other.port) or is_secured
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


def configured_origins() -> Iterator[Origin]:
    """Yield the servers whose addresses are set in this process's environment."""
    for name, value in os.environ.items():
        if _ADDRESS_VARIABLE.fullmatch(name) and value:
            address = value if "://" in value else f"https://{value}"
            if (origin := Origin.of(address)) is not None:
                yield origin


@dataclass
class Destinations:
    """Where the requests of one model may go.

    Args:
        origins: The servers.
        hosts: Patterns of hosts that are asked with HTTPS; see `HOSTS`.
    """

    origins: tuple[Origin, ...] = ()
    hosts: tuple[str, ...] = ()
    refusal: ModelDenied | None = field(default=None, init=False)
    """Why the newest request was refused; None if it was not. Clients hide it in their errors."""

    def check(self, address: str) -> None:
        """Refuse a request to another server.

        Raises:
            ModelDenied: The address is none of the model's.
        """
        self.refusal = None
        asked = Origin.of(address)
        if asked is not None and self._include(asked):
            return
        self.refusal = ModelDenied(
            f"A model's request to {asked or 'an address that is no server'} was not sent: this is "
            "neither its service's own address nor one that is set in the environment of the "
            "worker, as PROVIDER_API_BASE."
        )
        raise self.refusal

    def _include(self, asked: Origin) -> bool:
        if any(origin.is_same_server(asked) for origin in self.origins):
            return True
        named = (
            asked.host if asked.port == _DEFAULT_PORTS["https"] else f"{asked.host}:{asked.port}"
        )
        return asked.scheme == "https" and _matches(named, self.hosts)


current: ContextVar[Destinations | None] = ContextVar("current", default=None)
"""Where the requests of the running call may go; None: anywhere, it is no call of a model."""


@contextmanager
def limit_servers(destinations: Destinations) -> Iterator[None]:
    """Let the requests in the context go to some servers only.

    Raises:
        ModelDenied: One was to go to another server, and the call failed for it.
    """
    token = current.set(destinations)
    try:
        yield
    except Exception:
        if destinations.refusal is not None:
            raise destinations.refusal from None
        raise
    finally:
        current.reset(token)


def _matches(host: str, patterns: Iterable[str]) -> bool:
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", "[a-z0-9_-]+"), host) for pattern in patterns
    )
