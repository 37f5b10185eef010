"""What Podman's Docker API is given instead of what Docker takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.spec import Limits
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.engine import Engine, for_podman, is_podman, volumes
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import EngineUnfit


def config() -> dict[str, Any]:
    options = {"type": "none", "o": "bind,ro", "device": "/srv/code"}
    mounts = [
        container_config.local_volume("code", "/opt/fanout", options=options, labels={"a": "b"}),
        container_config.local_volume("store", "/store", options={}, labels={}),
    ]
    return container_config.sandbox_config(
        image="fanout/python", limits=Limits(memory_bytes=2**30, pids=64, disk_bytes=2**20),
        network="none", runtime=None, mounts=mounts, labels={}, heartbeat_seconds=1,
    )  # fmt: skip


def test_podman_is_known_by_its_name() -> None:
    assert is_podman({"Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]})
    assert not is_podman({"Components": [{"Name": "Engine"}, {"Name": "containerd"}]})
    assert not is_podman({})


def test_a_profile_becomes_a_file_with_the_same_content() -> None:
    given = config()
    (no_new, seccomp) = for_podman(given)["HostConfig"]["SecurityOpt"]

    path = Path(seccomp.removeprefix("seccomp="))
    assert no_new == "no-new-privileges"
    assert json.loads(path.read_text()) == json.loads(container_config.seccomp_profile())
    assert path.parent.stat().st_mode & 0o077 == 0
    assert for_podman(given)["HostConfig"]["SecurityOpt"] == [no_new, seccomp]
    assert "seccomp={" in given["HostConfig"]["SecurityOpt"][1], "what is given is not changed"


def test_file_systems_in_memory_keep_their_size_and_lose_what_podman_refuses() -> None:
    for options in for_podman(config())["HostConfig"]["Tmpfs"].values():
        assert "nosuid,nodev,size=" in options
        assert options.endswith(",mode=1777")
        assert not {"nr_inodes", "uid", "gid"} & {one.split("=")[0] for one in options.split(",")}


def test_volumes_with_options_are_named_so_that_they_can_be_made_before() -> None:
    assert list(volumes(config())) == [
        {
            "name": "code",
            "driver": "local",
            "driver_opts": {"type": "none", "o": "bind", "device": "/srv/code"},
            "labels": {"a": "b"},
        }
    ]
    code, store = for_podman(config())["HostConfig"]["Mounts"]
    assert (code["ReadOnly"], store["ReadOnly"]) == (True, False)


async def test_a_runtime_that_podman_would_overlook_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def version(_engine: Engine) -> dict[str, Any]:
        return {"Components": [{"Name": "Podman Engine"}]}

    async def fetch(identity: str) -> Path:
        raise AssertionError(identity)

    monkeypatch.setattr(Engine, "version", version)
    provider = DockerProvider(fetch, installation="one", worker="w", runtime="runsc")

    with pytest.raises(EngineUnfit, match=r"containers\.conf"):
        await provider.protection()
    await provider.close()
