"""Asks the HTTP service, for commands that work with a key and without Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from pydantic import ValidationError

from ...client.fleet_view import FleetView
from .exit_codes import KeyRefused, ServiceUnreachable, UsageProblem

ASK_SECONDS = 15.0
"""The time for an answer: a service with thousands of workers takes a second."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""The largest answer: a view has some 200 KiB, and the address may be that of any server."""
NO_VIEW = (
    "The answer of {url} is not a view of an installation: is it the address of `fanout serve`?"
)


class ServiceClient:
    """The service at one address, with one key.

    Args:
        client: The HTTP client.
        url: The address, for messages.
    """

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def fleet(self) -> FleetView:
        """Return the installation, as far as the key may see it.

        Raises:
            ServiceUnreachable: The service does not answer, or another program does.
            KeyRefused: The key is not valid, or lacks the scope `read`.
        """
        body = await self._get("/v1/fleet")
        try:
            return FleetView.model_validate_json(body)
        except ValidationError:
            raise ServiceUnreachable(NO_VIEW.format(url=self._url)) from None

    async def _get(self, path: str) -> bytes:
        body = b""
        try:
            async with self._client.stream("GET", path) as answer:
                _check(answer.status_code, self._url)
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ServiceUnreachable(NO_VIEW.format(url=self._url))
        except httpx.HTTPError as error:
            why = "did not answer in time" if isinstance(error, httpx.TimeoutException) else ""
            raise ServiceUnreachable(f"{self._url} {why or 'cannot be reached'}.") from None
        return body


@asynccontextmanager
async def open_service(url: str, key: str) -> AsyncIterator[ServiceClient]:
    """Yield the service at an address.

    Args:
        url: The address, such as `https://fanout.example`.
        key: The key, which is only sent to this address, never to a redirect's.

    Raises:
        UsageProblem: The address or the key cannot be used.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageProblem(f"--url is {url!r}; it begins with http:// or https://.")
    try:
        client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key.strip()}", "Accept-Encoding": "identity"},
            timeout=ASK_SECONDS,
            verify=url.startswith("https:"),  # certificates take long to load
        )
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise UsageProblem(f"--url is {url!r}, which is not an address.") from None
    async with client:
        yield ServiceClient(client, url)


def _check(status: int, url: str) -> None:
    """Raise the failure for the status of an answer, unless it is a success.

    Raises:
        KeyRefused: The key is refused.
        ServiceUnreachable: Something else.
    """
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise KeyRefused(f"{url} does not accept the key: it needs the scope read ({status}).")
    if status == httpx.codes.SERVICE_UNAVAILABLE:
        raise ServiceUnreachable(f"{url} is not available now ({status}).")
    if status != httpx.codes.OK:
        raise ServiceUnreachable(NO_VIEW.format(url=url))
