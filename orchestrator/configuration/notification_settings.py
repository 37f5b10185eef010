"""The settings of notifications: webhooks, and the hook of this machine."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from ..public_addresses import parse_address, parse_host

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


def _web_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("has to be like https://fanout.example.org")
    return text.rstrip("/")


def _signs(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    try:
        size = len(base64.b64decode(text.removeprefix("whsec_"), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not text.startswith("whsec_") or not 24 <= size <= 64:  # noqa: PLR2004 - the standard's
        raise ValueError("has to be whsec_ and 24 to 64 random bytes in base64")
    return secret


def _host(text: str) -> str:
    match = _HOST.fullmatch(text)
    if parse_address(text) is None and (match is None or parse_host(match["host"]) is None):
        raise ValueError("has to be a host or host:port, such as hooks.internal")
    return text.lower()


WebAddress = Annotated[str, AfterValidator(_web_address)]
ReceiverHost = Annotated[str, AfterValidator(_host)]


class NotificationSettings(BaseModel):
    """Notifications about the ends of jobs and about approvals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    on_finish: str | None = Field(default=None, min_length=1, max_length=4096)
    """A shell command (bash, or sh where there is none), run once when a job without a parent has
    ended, or a job waits for a person; `FANOUT_JOB_ID`, `FANOUT_JOB_STATE` and other variables
    describe the job. `desktop`: a desktop notification. Unset: nothing."""
    secret: Annotated[SecretStr, AfterValidator(_signs)] | None = None
    """Signs the webhooks of `fanout submit --webhook`: `whsec_` and 24 to 64 random bytes in
    base64. Webhooks that are registered over HTTP have their own secrets."""
    allowed_hosts: tuple[ReceiverHost, ...] = ()
    """JSON: hosts, or `host:port`, of receivers in the private network. They may have any address
    and port, and be notified without TLS; all others have to be on the public internet."""
    base_url: WebAddress | None = None
    """The address of `fanout serve` for receivers: links in webhooks begin with it. Unset: they are
    paths."""
    ca_file: Path | None = None
    """A PEM file of certificate authorities for receivers, in addition to the system's."""
    proxy: WebAddress | None = None
    """A proxy that makes all connections to receivers. It resolves the names, so it has to refuse
    private networks itself. The proxy variables of the environment are not used."""
