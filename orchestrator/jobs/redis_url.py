"""The URL of Redis: what it may ask for, and its form for Celery.

The ledger's client and Celery's transport read the query of a URL differently: Celery's takes
`rediss://` without options for "do not verify". So the options are read here, once for both, and
both always verify the server's certificate and its host name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix")
TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
"""Options of `rediss://`: the authority, the client's certificate and its key."""
ALWAYS = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
"""What is never turned off; a URL may say so."""
DATABASE = "db"
IN_SOCKET_URLS = (DATABASE, "username", "password")


def check_redis_url(url: str) -> str:
    """Return the URL of a Redis if it can be used.

    Raises:
        ValueError: The reason why not, as the end of a sentence that quotes nothing of the URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("it is not a URL") from None
    if parts.scheme not in SCHEMES or "://" not in url:
        raise ValueError(
            "it starts with redis://, rediss:// or unix://, for example redis://localhost:6379/0"
        )
    allowed = {"redis": (DATABASE,), "rediss": (DATABASE, *TLS_FILES, *ALWAYS)}
    known = allowed.get(parts.scheme, IN_SOCKET_URLS)
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
    return url


def tls_options(url: str) -> dict[str, Any] | None:
    """Return the options of TLS as redis-py and Celery take them; None for a URL without TLS."""
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return None
    files = {name: value for name, value in parse_qsl(parts.query) if name in TLS_FILES}
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **files}


def celery_url(url: str) -> str:
    """Return the URL of a Redis as Celery spells it.

    The number of the database is in its path; a Unix socket's scheme is `redis+socket`. The options
    of TLS are not part of it: Celery takes them from `broker_use_ssl`.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme != "unix":
        path = f"/{options[DATABASE]}" if DATABASE in options else parts.path
        return parts._replace(path=path, query="").geturl()
    user = options.get("username") or unquote(parts.username or "")
    password = options.get("password") or unquote(parts.password or "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    query = f"?virtual_host={options[DATABASE]}" if DATABASE in options else ""
    return f"redis+socket://{login}{parts.path}{query}"
