"""The URL of Redis: what it may ask for, and its form for Celery.

The ledger's client and Celery's transport read the query of a URL differently: Celery's takes
`rediss://` without options for "do not verify". So the options are read here, once for both, and
both always verify the server's certificate and its host name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

ALIASES = {
    "valkey": "redis",
    "valkeys": "rediss",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinels",
}
"""Schemes that are aliases: Valkey speaks Redis's protocol."""
SCHEMES = ("redis", "rediss", "unix", "sentinel", "sentinels")
TLS_SCHEMES = ("rediss", "sentinels")
SENTINEL_SCHEMES = ("sentinel", "sentinels")
TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
"""Options of `rediss://`: the authority, the client's certificate and its key."""
ALWAYS = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
"""The options for verification, which cannot be turned off; a URL may set them to their only value.
"""
DATABASE = "db"
IN_SOCKET_URLS = (DATABASE, "username", "password")
PRIMARY = "master_name"
"""The option of `sentinel://` that names the primary, as Celery calls it."""
IN_SENTINEL_URLS = (DATABASE, PRIMARY, "sentinel_username", "sentinel_password")
ALLOWED = {
    "redis": (DATABASE,),
    "rediss": (DATABASE, *TLS_FILES, *ALWAYS),
    "unix": IN_SOCKET_URLS,
    "sentinel": IN_SENTINEL_URLS,
    "sentinels": (*IN_SENTINEL_URLS, *TLS_FILES, *ALWAYS),
}
"""The options of each scheme."""
SENTINEL_PORT = 26379


@dataclass(frozen=True)
class SentinelAddress:
    """A Redis whose primary is named by Sentinels."""

    sentinels: tuple[tuple[str, int], ...]
    primary: str
    database: int
    login: dict[str, str]
    """User and password of Redis, as far as the URL has them."""
    sentinel_login: dict[str, str]
    """User and password of the Sentinels, as far as the URL has them."""


def check_redis_url(url: str) -> str:
    """Return the URL of a Redis if it can be used, with the scheme that this module uses.

    Raises:
        ValueError: The reason why not, as the end of a sentence that quotes nothing of the URL.
    """
    try:
        url = canonical_url(url)
        parts = urlsplit(url)
        _ = parts.scheme in SENTINEL_SCHEMES or parts.port
    except ValueError:
        raise ValueError("it is not a URL") from None
    if parts.scheme not in SCHEMES or "://" not in url:
        raise ValueError(
            "it starts with redis://, rediss://, unix:// or, for Sentinels, sentinel:// or "
            "sentinels://, for example redis://localhost:6379/0; valkey:// and valkeys:// are "
            "the same as redis:// and rediss://"
        )
    known = ALLOWED[parts.scheme]
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            raise ValueError(f"its options may be {', '.join(known)}, but one is another")
        if name in ALWAYS and value.lower() not in {ALWAYS[name], f"cert_{ALWAYS[name]}"}:
            raise ValueError(
                f"the server's certificate and host name are always verified: remove {name}, and "
                "name the authority that signed it with ssl_ca_certs=/path/to/ca.pem"
            )
        if name in TLS_FILES and not (Path(value).is_absolute() and Path(value).exists()):
            raise ValueError(f"{name} has to be the absolute path of a file that exists")
        if name == DATABASE and not value.isdecimal():
            raise ValueError("db has to be a number")
    sentinel_address(url)
    return url


def canonical_url(url: str) -> str:
    """Return the URL with the canonical scheme of an alias, and its Sentinels as one list.

    Celery writes a URL for each Sentinel, with semicolons between them.

    Raises:
        ValueError: It is not a URL.
    """
    scheme, sign, rest = url.partition("://")
    scheme = ALIASES.get(scheme.lower(), scheme)
    if scheme not in SENTINEL_SCHEMES:
        return f"{scheme}{sign}{rest}"
    urls = [urlsplit(f"//{one.rpartition('://')[2]}") for one in rest.split(";")]
    login, at, _ = urls[0].netloc.rpartition("@")
    hosts = ",".join(one.netloc.rpartition("@")[2] for one in urls)
    path = next((one.path for one in urls if one.path), "")
    query = next((f"?{one.query}" for one in urls if one.query), "")
    return f"{scheme}://{login}{at}{hosts}{path}{query}"


def tls_options(url: str) -> dict[str, Any] | None:
    """Return the options of TLS as redis-py and Celery take them; None for a URL without TLS."""
    parts = urlsplit(url)
    if parts.scheme not in TLS_SCHEMES:
        return None
    files = {name: value for name, value in parse_qsl(parts.query) if name in TLS_FILES}
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **files}


def sentinel_address(url: str) -> SentinelAddress | None:
    """Return what a URL of Sentinels says; None for any other URL.

    Raises:
        ValueError: It is not complete; the text is the end of a sentence that quotes nothing of it.
    """
    parts = urlsplit(url)
    if parts.scheme not in SENTINEL_SCHEMES:
        return None
    options = dict(parse_qsl(parts.query))
    if PRIMARY not in options:
        raise ValueError(f"Sentinels need the name of the primary: ?{PRIMARY}=NAME")
    database = options.get(DATABASE) or parts.path.strip("/") or "0"
    if not database.isdecimal():
        raise ValueError("what follows its hosts is the number of the database")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return SentinelAddress(
        sentinels=tuple(_host_and_port(host) for host in hosts.split(",")),
        primary=options[PRIMARY],
        database=int(database),
        login=_given(username=unquote(user), password=unquote(password)),
        sentinel_login=_given(
            username=options.get("sentinel_username", ""),
            password=options.get("sentinel_password", ""),
        ),
    )


def celery_url(url: str) -> str:
    """Return the URL of a Redis as Celery spells it.

    The number of the database is in its path; a Unix socket's scheme is `redis+socket`; each
    Sentinel has a URL. The options of TLS are not part of it: Celery takes them from
    `broker_use_ssl`, and those of Sentinels from its transport's options.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if address := sentinel_address(url):
        login = _login(address.login.get("username", ""), address.login.get("password", ""))
        return ";".join(
            f"sentinel://{login}{f'[{host}]' if ':' in host else host}:{port}/{address.database}"
            for host, port in address.sentinels
        )
    if parts.scheme != "unix":
        path = f"/{options[DATABASE]}" if DATABASE in options else parts.path
        return parts._replace(path=path, query="").geturl()
    user = options.get("username") or unquote(parts.username or "")
    password = options.get("password") or unquote(parts.password or "")
    query = f"?virtual_host={options[DATABASE]}" if DATABASE in options else ""
    return f"redis+socket://{_login(user, password)}{parts.path}{query}"


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ValueError("its Sentinels are host:port, with commas between them")
    return host, port or SENTINEL_PORT


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _login(user: str, password: str) -> str:
    return f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
