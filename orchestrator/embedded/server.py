"""The server of a state folder: the service on the loopback interface, as `fanout up` starts it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from ..client.state_folder import NotStarted, StateFolder, write_private
from ..configuration.settings import PREFIX, Settings
from ..process_secrets import session_environment
from .child_process import ChildProcess
from .python_process import helper_environment, python_argv

START_SECONDS = 60.0
"""The time for a start: importing the web libraries takes several seconds on a busy machine."""
POLL_SECONDS = 0.02
"""The time between two checks during a start: each takes a millisecond."""
ANSWER_SECONDS = 5.0
"""The time for one check: a server of this machine answers within milliseconds, a busy one within
seconds."""
LOOPBACK = "127.0.0.1"
SECRETS = f"{PREFIX}SECRETS__"
"""The settings whose values only workers need."""


class Server:
    """The server of a state folder, whether it runs or not.

    Args:
        folder: The state folder.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._address = folder.path / "server.url"
        self.process = ChildProcess(folder.path, "server")

    @property
    def url(self) -> str | None:
        """Its address; None when it does not run."""
        if not self.process.is_alive:
            return None
        try:
            return self._address.read_text()
        except OSError:
            return None

    async def launch(self, settings: Settings) -> str:
        """Begin to start it unless it runs, and return its future address.

        The caller holds the folder's lock.

        Args:
            settings: Those of the services, with the URL of Redis.
        """
        if (running := self.url) is not None:
            return running
        port = await asyncio.to_thread(_free_port, settings.api.port)
        self.process.start(
            python_argv("fanout", "serve", "--host", LOOPBACK, "--port", str(port)),
            env=_environment(settings),
            outlives_parent=True,
        )
        url = f"http://{LOOPBACK}:{port}"
        write_private(self._address, url)
        return url

    async def start(self, settings: Settings) -> str:
        """Start it unless it runs, wait until it answers, and return its address.

        The caller holds the folder's lock.

        Args:
            settings: Those of the services, with the URL of Redis.

        Raises:
            NotStarted: It did not start; the text says why.
        """
        url = await self.launch(settings)
        deadline = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(_answers, url):
            if not self.process.is_alive or time.monotonic() > deadline:
                why = self.process.last_log_line() or "it wrote nothing"
                raise NotStarted(f"The server did not start ({self.process.log_path}): {why}")
            await asyncio.sleep(POLL_SECONDS)
        return url

    async def stop(self, settings: Settings) -> None:
        """Stop it, if it runs."""
        await self.process.stop(settings.api.shutdown_grace_seconds)
        self._address.unlink(missing_ok=True)


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment without keys of models and of sandboxes, but with that of the hook."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and not name.startswith(SECRETS)
    }
    found = {
        f"{PREFIX}REDIS_URL": str(settings.redis_url),
        f"{PREFIX}REDIS_PREFIX": settings.redis_prefix,
        f"{PREFIX}BLOBS_URL": settings.blobs,
        f"{PREFIX}STATE_DIR": str(settings.state_dir),
    }
    return {**ours, **session_environment(), **helper_environment(), **found}


def _free_port(wanted: int) -> int:
    """Return the wanted port, or another one when it is in use."""
    for port in (wanted, 0):
        try:
            with socket.create_server((LOOPBACK, port)) as listener:
                return int(listener.getsockname()[1])
        except OSError:
            continue
    return wanted


def _answers(url: str) -> bool:
    """Return whether a server answers at an address."""
    if urlsplit(url).hostname != LOOPBACK:
        return False
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/healthz", timeout=ANSWER_SECONDS) as response:
            return bool(response.status == 200)  # noqa: PLR2004 - OK
    except (OSError, urllib.error.URLError):
        return False
