"""Each sandbox has an empty network of its own, also where the engine is spared its hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.holders import networks_are_slow
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command, Sandbox
from tests.docker.conftest import make_sandbox_spec
from tests.waits import eventually

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

NETWORK = """
import json, os, socket
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(("localhost", listener.getsockname()[1])).close()
print(os.readlink("/proc/self/ns/net"), sorted(os.listdir("/sys/class/net")))
"""


async def network_of(sandbox: Sandbox) -> str:
    """Its namespace and its devices; a connection to `localhost` works in it."""
    done = await sandbox.run(Command(argv=["python3", "-c", NETWORK]))
    assert done.exit_code == 0, done.output
    return done.output.decode()


async def without_hook(provider: DockerProvider) -> DockerProvider:
    """The provider once it spares its engine the hook."""
    if not networks_are_slow((await provider.probe()).version):
        pytest.skip("This engine has no such hook.")
    await provider.disk_quota()  # starts the steward
    await eventually(lambda: provider._networks.take() != "none")
    return provider


async def test_sandboxes_share_no_network_and_know_localhost(
    make_provider: Callable[..., DockerProvider],
) -> None:
    provider = await without_hook(make_provider(warm=0))
    specs = [make_sandbox_spec() for _ in range(3)]
    async with provider.open(specs[0]) as one, provider.open(specs[1]) as two:
        found = {await network_of(one), await network_of(two)}

    async with provider.open(specs[2]) as three:  # its number may be one of theirs
        found_later = await network_of(three)

    assert len(found) == 2
    assert all("['lo']" in each for each in (*found, found_later))


async def test_an_engine_that_would_let_sandboxes_share_a_network_is_found_out(
    make_provider: Callable[..., DockerProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = container_config.sandbox_config

    def joining(**values: Any) -> dict[str, Any]:
        """As an engine would take it that does not know that the network is disabled."""
        config = genuine(**values)
        config.pop("NetworkDisabled", None)
        return config

    monkeypatch.setattr(container_config, "sandbox_config", joining)
    provider = await without_hook(make_provider(warm=0))
    specs = [make_sandbox_spec() for _ in range(3)]
    async with (
        provider.open(specs[0]) as one,
        provider.open(specs[1]) as two,
        provider.open(specs[2]) as three,
    ):
        assert len({await network_of(each) for each in (one, two, three)}) == 3
