"""The settings of the web tools, and of an operator's own tools in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from ..jobs.spec import GIB
from .credentials import usable_value
from .notification_settings import ReceiverHost, WebAddress

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


def _in_a_header(key: SecretStr) -> SecretStr:
    usable_value(key.get_secret_value())
    return key


class WebSettings(BaseModel):
    """`web_search` and `web_fetch`, which run in workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: Literal["public", "none"] | tuple[str, ...] = "public"
    """The hosts whose pages `web_fetch` reads: `public` (all on the public internet), a list like
    `network` of a definition, or `none`: agents have neither `web_fetch` nor `web_search`."""
    allowed_hosts: tuple[ReceiverHost, ...] = ()
    """JSON: hosts, or `host:port`, of your own network that `web_fetch` may read too. All others
    have to be on the public internet."""
    ca_file: Path | None = None
    """A PEM file of certificate authorities of your own network, in addition to the usual ones."""
    own_search: bool = True
    """Whether `web_search` is the search of the agent's own model, where its service has one
    (Gemini, Claude). The service bills its searches in addition to the tokens."""
    search: Literal["searxng", "brave"] | None = None
    """The search service for all other models. Unset: their agents have no `web_search`."""
    search_url: WebAddress | None = None
    """The address of a SearXNG whose format `json` is enabled, also in your own network; of Brave,
    if it is not its own."""
    search_key: Annotated[SecretStr, AfterValidator(_in_a_header)] | None = None
    """The key for Brave. It is sent to the search service only."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.search == "searxng" and self.search_url is None:
            raise ValueError("search = searxng needs search_url, the address of your SearXNG")
        if self.search == "brave" and self.search_key is None:
            raise ValueError("search = brave needs search_key, the key of your subscription")
        if "@" in (self.search_url or ""):
            raise ValueError("search_url holds no user and no password")
        if self.search is None and (self.search_url or self.search_key):
            raise ValueError("search_url and search_key need search = searxng or brave")
        return self


class PythonToolSettings(BaseModel):
    """One tool of the entry points `fanout.tools`: each of its calls is a process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: tuple[VariableName, ...] = ()
    """The variables of the worker, or of the `.env` next to its configuration file, that the tool
    gets. It has no others, but `PATH` and the like."""
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    """The time of one call."""
    memory_bytes: int = Field(default=GIB, ge=64 * 1024**2)
    """The address space of the process."""
