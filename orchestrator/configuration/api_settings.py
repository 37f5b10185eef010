"""The settings of the HTTP service: its address, its callers, and its limits."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from ..jobs.spec import DEFINITIONS_ONLY, CallerPolicy
from ..public_addresses import ascii_name, parse_address, parse_host

MIB = 1024**2
MIN_KEY_CHARACTERS = 32
"""The shortest key that a person may choose: as hexadecimal digits these are 128 random bits."""
MAX_NAME_CHARACTERS = 64
"""The longest name of a key, an owner or a tenant; a job's tenant has the same limit."""
EVERYBODY = "*"
"""The name that permits all: as an owner, the jobs of all owners of the tenant; as a tenant, too,
those of all tenants."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.@+:/|-]*"
Name = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=MAX_NAME_CHARACTERS)]
"""Letters, digits and what e-mail addresses and subjects of tokens contain; never `*`."""
NameOrEverybody = Annotated[
    str, StringConstraints(pattern=rf"^({_NAME}|\*)$", max_length=MAX_NAME_CHARACTERS)
]

DEFAULT_TENANT = "default"
"""The tenant of keys and tokens that name none."""


def share_tenant(tenant: str) -> str:
    """Return the tenant whose share of the workers is used by jobs for a tenant, or for all."""
    return DEFAULT_TENANT if tenant == EVERYBODY else tenant


_OUR_NAMES = frozenset({"fanout", "operator", "root", "system"})
"""The names under which the operator's own sessions and local programs are recorded."""


def is_reserved(name: str) -> bool:
    """Return whether a name is reserved for the operator: no key and no token has it."""
    return name.strip().casefold() in _OUR_NAMES


def _of_a_key(name: str) -> str:
    if is_reserved(name):
        raise ValueError(f"{name} is reserved for the operator: choose another name")
    return name


Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip
"""The signatures of tokens that can be checked with a public key."""


class Scope(StrEnum):
    """What a caller may do."""

    SUBMIT = "submit"
    """Submit, cancel, retry and message jobs."""
    READ = "read"
    """See jobs, their journals, results and approvals."""
    APPROVE = "approve"
    """Answer approvals."""
    ADMIN = "admin"
    """See the audit log and the metrics of the installation."""


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own, which no other machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _origin(url: str) -> str:
    """Return an origin: scheme, host and port, in small letters and without a slash."""
    parts = urlsplit(url)
    rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(rest):
        raise ValueError("it is written like https://fanout.example.com, without a path")
    _ = parts.port  # raises ValueError for an invalid one
    return f"{parts.scheme}://{parts.netloc}".lower()


def _issuer(url: str) -> str:
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or not parts.hostname:
        raise ValueError("it is the address of the issuer, without a query")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError("an issuer is reached by https, because its keys decide who a caller is")
    return url


def _host_name(host: str) -> str:
    name = parse_address(host.strip().strip("[]")) or parse_host(ascii_name(host.strip()))
    if name is None:
        raise ValueError("it is one name or address, without a scheme, a port or a wildcard")
    return str(name)


def _proxy(text: str) -> str:
    """Return an address or a network in the form for comparisons; `*` is all."""
    if text.strip() == "*":
        return "*"
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise ValueError(
            f"{text[:100]!r} is no address: write 10.0.0.7, a network such as 10.0.0.0/8, or *"
        ) from None


def _usable_key(key: SecretStr) -> SecretStr:
    value = key.get_secret_value()
    if len(value) < MIN_KEY_CHARACTERS or not value.isascii() or " " in value:
        raise ValueError(
            f"a key has at least {MIN_KEY_CHARACTERS} random characters, all of them ASCII and "
            "none a space: openssl rand -hex 32"
        )
    return key


Origin = Annotated[str, AfterValidator(_origin)]
Address = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+[^\s]*$", max_length=2_000)]
"""A link of the page: a browser opens only http and https."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StaticKey(_Section):
    """A key in the configuration, for containers; other keys are made by `fanout keys`."""

    key: Annotated[SecretStr, AfterValidator(_usable_key)]
    """The key itself, 32 random characters or more: openssl rand -hex 32."""
    scopes: tuple[Scope, ...] = Field(min_length=1)
    """The scopes of the key."""
    owner: Annotated[NameOrEverybody, AfterValidator(_of_a_key)] | None = None
    """The owner of its jobs; unset: the key's name."""
    tenant: NameOrEverybody = "default"
    """The tenant whose share of the workers is used."""


class CallerSettings(CallerPolicy):
    """The choices of keys and tokens for their jobs, beyond what agent definitions say.

    Each list is taken from the first of these that sets it: the key's entry in `keys`, the policy
    with which the key was made, the tenant's entry in `tenants`, and the lists here.
    """

    tenants: dict[Name, CallerPolicy] = Field(default_factory=dict)
    """The policies for the keys and tokens of one tenant."""
    keys: dict[Name, CallerPolicy] = Field(default_factory=dict)
    """The policies for single keys, by name. A key that was made before there were these settings
    may choose anything until it is named here."""

    def make_policy(
        self, tenant: str, key: str | None = None, own_policy: CallerPolicy | None = None
    ) -> CallerPolicy:
        """Return what a caller may choose.

        Args:
            tenant: The tenant of the caller, or `*`.
            key: The name of its key; None for a token.
            own_policy: The policy with which the key was made; None for a key of the configuration.
        """
        by_key = self.keys.get(key, DEFINITIONS_ONLY) if key else DEFINITIONS_ONLY
        general = CallerPolicy.model_validate(
            {name: getattr(self, name) for name in CallerPolicy.model_fields}
        )
        by_tenant = self.tenants.get(share_tenant(tenant), DEFINITIONS_ONLY).over(general)
        return by_key.over((own_policy or DEFINITIONS_ONLY).over(by_tenant))


class OidcSettings(_Section):
    """Bearer tokens of an OpenID Connect issuer."""

    issuer: Annotated[str, AfterValidator(_issuer)] | None = None
    """The issuer, exactly as its tokens name it; its keys are found by its
    `/.well-known/openid-configuration`. Unset: no tokens are accepted."""
    audience: str | None = Field(default=None, min_length=1)
    """What a token's `aud` has to name; required, because tokens for other services of the issuer
    do not permit the use of this one."""
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "PS256", "ES256", "EdDSA"), min_length=1
    )
    """The accepted signatures. Symmetric ones (HS…) and `none` are never accepted: with them the
    issuer's public key could be used to forge tokens."""
    name_claim: str = "sub"
    """The claim with the caller's name, as approvals and the audit log record it. Choose a claim
    that people cannot change themselves."""
    owner_claim: str = "sub"
    """The claim with the owner of the jobs."""
    tenant_claim: str | None = None
    """The claim with the tenant whose share of the workers is used; unset: the tenant `default`."""
    scopes_claim: str = "scope"
    """The claim with the scopes: a list, or a text with spaces between them."""
    scope_prefix: str = "fanout:"
    """The prefix of fanout's scopes in that claim: `fanout:submit`."""
    default_scopes: tuple[Scope, ...] = ()
    """The scopes of a token without a scope of fanout."""
    leeway_seconds: float = Field(default=30.0, ge=0, le=300)
    """How far the issuer's clock may differ."""
    keys_seconds: float = Field(default=3600.0, ge=1, le=86_400)
    """How long the issuer's keys are used before they are read again. For an unknown key id they
    are read at once, at most every ten seconds."""

    @model_validator(mode="after")
    def _has_an_audience(self) -> Self:
        if self.issuer is not None and self.audience is None:
            raise ValueError("an issuer needs FANOUT_API__OIDC__AUDIENCE too")
        return self


class ApiSettings(_Section):
    """The HTTP service: `fanout serve`."""

    host: str = "127.0.0.1"
    """The address that it listens on; one that other machines reach needs a key or an issuer."""
    port: int = Field(default=8642, ge=0, le=65_535)
    """The port; 0: any free one."""
    keys: dict[Annotated[Name, AfterValidator(_of_a_key)], StaticKey] = Field(default_factory=dict)
    """Keys by name, for containers; JSON: `{"ci": {"key": "…", "scopes": ["submit", "read"]}}`."""
    callers: CallerSettings = CallerSettings()
    """What keys and tokens may choose for their jobs."""
    oidc: OidcSettings = OidcSettings()
    """Bearer tokens of an issuer."""
    public_url: Origin | None = None
    """The address of the service for people and other programs, if it is behind a proxy; with https
    the cookies of the page are sent only over https."""
    allowed_origins: tuple[Origin, ...] = ()
    """Other sites whose scripts may call the service, with their own key: CORS is closed for all
    other sites."""
    trusted_hosts: tuple[Annotated[str, AfterValidator(_host_name)], ...] = ()
    """Further names in the header Host that the service answers to; all others are refused, so that
    no site can make a browser on this machine call it by a name of that site."""
    trusted_proxies: tuple[Annotated[str, AfterValidator(_proxy)], ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-For and -Proto count; `*`: all. Their
    connections are not limited by address."""
    max_connections: int = Field(default=4000, ge=1)
    """Open connections of one server process, at most half of the descriptors that it may have;
    each silent one takes some 10 KiB. A new one takes the place of the one that has waited longest
    for a request; where all have one, it is refused with 503."""
    max_connections_of_address: int = Field(default=1200, ge=1)
    """Open connections of one IPv4 address, or one IPv6 network of 64 bits: more than all event
    streams of a server, which may come through one proxy."""
    head_seconds: float = Field(default=20.0, ge=1, le=600)
    """How long a client may take to send the line and the headers of a request: a phone with bad
    reception takes seconds."""
    stall_seconds: float = Field(default=30.0, ge=1, le=3600)
    """How long the transfer of a body or an answer may be below `min_bytes_per_second`."""
    min_bytes_per_second: int = Field(default=500, ge=1)
    """The lowest rate at which a client sends a body and reads an answer."""
    max_body_bytes: int = Field(default=10 * MIB, ge=1024)
    """The largest body of a request, such as a batch of jobs with long contexts; files are sent as
    archives."""
    max_upload_bytes: int = Field(default=2048 * MIB, ge=1024)
    """The largest archive: as much as the largest workspace (FANOUT_LIMITS__SNAPSHOT_BYTES)."""
    git_hosts: tuple[Annotated[str, AfterValidator(str.lower)], ...] = ()
    """Hosts, or `host:port`, of the private network from which the workspace of a run may be
    cloned; others have to be on the public internet."""
    git_seconds: float = Field(default=120.0, ge=1, le=3600)
    """How long a clone may take: large projects take half a minute at depth 1."""
    git_ca_file: Path | None = None
    """A PEM file of certificate authorities for clones, which replaces the system's."""
    max_streams: int = Field(default=1000, ge=1)
    """Concurrent event streams of one server process; each takes some 0.3 MiB."""
    max_streams_of_caller: int = Field(default=600, ge=1)
    """Event streams of one caller, so that the others get some. The same limit applies to its
    requests that wait for their answers at one server process."""
    requests_per_minute: int = Field(default=6000, ge=1)
    """Requests of one caller at one server process: enough for a program that polls a hundred jobs.
    """
    failed_logins_per_minute: int = Field(default=20, ge=1)
    """Wrong keys and tokens from one address before it has to wait: enough for typing errors, too
    few for guessing."""
    flower_url: Address | None = None
    """The address of Flower (`fanout flower`) for browsers; the page links to it."""
    trace_url: Address | None = None
    """The address of traces for browsers; the page links a job to it, with `{trace_id}` replaced by
    the id of its trace: https://traces.example.com/trace/{trace_id}."""
    grpc_port: int | None = Field(default=None, ge=1, le=65_535)
    """The port for A2A over gRPC, with the extra `grpc`. Unset: not served."""
    grpc_certificate_file: Path | None = None
    """A PEM file with the certificate of the gRPC port."""
    grpc_key_file: Path | None = None
    """A PEM file with its key."""
    grpc_without_tls: bool = False
    """Whether other machines may reach the gRPC port without TLS, because a proxy adds it."""
    session_seconds: float = Field(default=12 * 3600, ge=60, le=30 * 86_400)
    """How long a browser stays logged in: a working day."""
    login_link_seconds: float = Field(default=600.0, ge=10, le=600)
    """How long a login link works until it is opened; it works once."""
    shutdown_grace_seconds: float = Field(default=10.0, ge=0, le=600)
    """The time from SIGTERM until the end: requests are answered, event streams end and are resumed
    at another server."""
