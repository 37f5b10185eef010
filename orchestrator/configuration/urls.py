"""The addresses of services that a definition may name."""

from __future__ import annotations

from urllib.parse import urlsplit


def usable_url(url: str) -> str:
    """Return the address of a service.

    Raises:
        ValueError: It is not one of HTTP, or holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a url begins with http:// or https:// and names a host")
    if parts.username or parts.password:
        raise ValueError(
            "a url holds no password; give it in headers or credentials, where secrets are named"
        )
    return url
