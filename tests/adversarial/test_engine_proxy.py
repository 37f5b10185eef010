"""A worker behind the proxy runs sandboxes; who takes the worker over gets nothing else."""

from __future__ import annotations

import copy
import http.client
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from fanout.orchestrator.jobs.spec import MAX_LAYERS
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker import steward_client as steward_program
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command, nobody
from tests.bundles import BundleBuilder
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec
from tests.services import docker

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a running proxy."""
    path = tmp_path_factory.mktemp("proxy") / "engine.sock"
    argv = [
        sys.executable,
        "-P",
        "-m",
        "fanout.workers.extras.engine_proxy",
        "--listen",
        str(path),
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "ready" not in (line := process.stderr.readline()):
            assert line, "the proxy ended"
        yield path
        process.terminate()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


def ask(proxy: Path, method: str, target: str, body: object = None) -> tuple[int, str]:
    """The status and the text of an answer."""
    connection = UnixConnection(proxy)
    sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    connection.request(method, target, sent, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def raw(proxy: Path, request: bytes) -> bytes:
    """What comes back for bytes as they are."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(proxy))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotFolder:
    return SnapshotFolder(tmp_path)


@pytest.fixture
async def behind(proxy: Path, snapshots: SnapshotFolder) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider(
        snapshots.fetch,
        installation=f"test-{secrets.token_hex(4)}",
        worker="w",
        docker_host=f"unix://{proxy}",
    )
    yield provider
    await provider.reap(nobody)
    await provider.close()


async def test_jobs_run_behind_it(behind: DockerProvider, snapshots: SnapshotFolder) -> None:
    spec = make_sandbox_spec(snapshot=snapshots.add({"given.txt": b"given\n"}))

    async with behind.open(spec) as sandbox:
        done = await sandbox.run(Command(argv="cat given.txt; head -c 300000 /dev/zero > made.bin"))
        assert (done.exit_code, done.output) == (0, b"given\n")
        assert await changed_paths(sandbox) == [("made.bin", "added")]

    await behind.discard(spec.job_id)


@pytest.mark.slow
async def test_a_job_starts_from_layers_behind_it(
    behind: DockerProvider, snapshots: SnapshotFolder
) -> None:
    layers = []
    for number in range(MAX_LAYERS):
        builder = BundleBuilder()
        bundle = builder.add(f"f{number}", builder.file(b"x")).build()
        layers.append(snapshots.add_archive(bundle.getvalue()))
    base = snapshots.add({"given.txt": b"given\n"})
    spec = make_sandbox_spec(snapshot=base, layers=tuple(layers))

    async with behind.open(spec) as sandbox:
        done = await sandbox.run(Command(argv="ls | wc -l; rm f0"))
        assert done.output == b"%d\n" % (MAX_LAYERS + 1)
        assert await changed_paths(sandbox) == [("f0", "deleted")]

    await behind.discard(spec.job_id)


async def test_a_worker_sees_behind_it_what_it_needs_to_start(behind: DockerProvider) -> None:
    status = await behind.probe()

    assert status.cores >= 1


@pytest.fixture(scope="module")
def accepted(proxy: Path) -> dict[str, dict[str, Any]]:
    """Configurations that pass: one of a sandbox, one of a steward."""
    return {
        "sandbox": sandbox_configuration(),
        "sandbox with renamed folders": sandbox_configuration("redirect_dir=on,metacopy=off"),
        "steward": steward_configuration(),
        "steward with disks": steward_configuration(may_mount=True),
    }


def engine_root() -> str:
    return docker("info", "--format", "{{.DockerRootDir}}").strip()


def labels(role: str) -> dict[str, str]:
    return {"fanout.role": role, "fanout.installation": "test", "fanout.job": "one"}


def sandbox_configuration(marks: str = "userxattr") -> dict[str, Any]:
    store = f"{engine_root()}/volumes/fanout-test/_data"
    layers = f"lowerdir={store}/snapshots/abc/tree,upperdir={store}/jobs/one/disk/upper"
    overlay = {
        "type": "overlay",
        "device": "overlay",
        "o": f"{layers},workdir={store}/jobs/one/disk/work,{marks},nosuid,nodev",
    }
    output = {"type": "none", "o": "bind", "device": f"{store}/jobs/one/disk/output"}
    code = {"type": "none", "o": "bind,ro", "device": f"{store}/code/abc"}
    return container_config.sandbox_config(
        image="fanout/python",
        limits=make_sandbox_spec().limits,
        network="none",
        runtime=None,
        mounts=[
            container_config.local_volume(
                "fanout-test.job.one", "/workspace", options=overlay, labels=labels("workspace")
            ),
            container_config.local_volume(
                "fanout-test.output.one", "/command_output", options=output, labels=labels("output")
            ),
            container_config.local_volume(
                "fanout-test.code.abc",
                container_config.CODE_FOLDER,
                options=code,
                labels=labels("code"),
                read_only=True,
            ),
        ],
        labels=labels("sandbox"),
        heartbeat_seconds=10,
    )


def steward_configuration(*, may_mount: bool = False) -> dict[str, Any]:
    if may_mount:
        store = f"{engine_root()}/volumes/fanout-test.shared/_data"
        mount = container_config.shared_bind(store, steward_program.STORE)
    else:
        mount = container_config.local_volume(
            "fanout-test", steward_program.STORE, options={}, labels=labels("store")
        )
    return container_config.steward_config(
        image="fanout/python",
        mount=mount,
        command=steward_program.steward_command(1000, 1000),
        labels=labels("steward"),
        may_mount=may_mount,
    )


def driver_of(config: dict[str, Any]) -> dict[str, Any]:
    """The driver's part of the first mount, which a bind has not."""
    volume = config["HostConfig"]["Mounts"][0].setdefault("VolumeOptions", {})
    return volume.setdefault("DriverConfig", {"Name": "local"})


def bind(source: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": "/host"}


def options(device: str, kind: str = "none", o: str = "bind") -> dict[str, str]:
    return {"type": kind, "o": o, "device": device}


def workspace_from(**new: str) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        driver_of(config)["Options"] = new

    return change


def host(**new: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["HostConfig"].update(new)


def top(**new: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.update(new)


def through_a_jobs_link(config: dict[str, Any]) -> None:
    """A job made `jobs/one/disk/upper/out -> /`, and the mount follows it."""
    store = f"{engine_root()}/volumes/fanout-test/_data"
    driver_of(config)["Options"] = options(f"{store}/jobs/one/disk/upper/out")


def overlay_over(*lower: str, marks: str = "userxattr") -> Callable[[dict[str, Any]], None]:
    """A mount of the accepted one's shape with other lower folders; STORE is the store."""

    def change(config: dict[str, Any]) -> None:
        store = f"{engine_root()}/volumes/fanout-test/_data"
        below = ":".join(lower).replace("STORE", store)
        layers = f"lowerdir={below},upperdir={store}/jobs/one/disk/upper"
        o = f"{layers},workdir={store}/jobs/one/disk/work,{marks},nosuid,nodev"
        driver_of(config)["Options"] = options("overlay", "overlay", o)

    return change


TREE = "STORE/snapshots/abc/tree"
ATTACKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "privileged": host(Privileged=True),
    "privileged in another case": host(privileged=True),
    "the whole host configuration in another case": top(hostconfig={"Privileged": True}),
    "a bind of the root": host(Binds=["/:/host"]),
    "a bind mount of the root": lambda c: c["HostConfig"]["Mounts"].append(bind("/")),
    "a bind instead of the workspace": lambda c: c["HostConfig"]["Mounts"].__setitem__(
        0, bind("/")
    ),
    "a volume that is the root": workspace_from(**options("/")),
    "a volume that is a disk": workspace_from(type="ext4", device="/dev/sda1", o=""),
    "a volume above the store": workspace_from(**options("/var/lib/docker/volumes/x/../../..")),
    "a volume through a job's link": through_a_jobs_link,
    "an overlay over the root": workspace_from(
        type="overlay", device="overlay", o="lowerdir=/,upperdir=/tmp/a,workdir=/tmp/b"
    ),
    "a layer that is the root": overlay_over(TREE, "/"),
    "a layer above the store": overlay_over("STORE/snapshots/../tree", TREE),
    "a layer through a job's link": overlay_over(TREE, "STORE/jobs/one/disk/upper/out/tree"),
    "a layer of a job's files": overlay_over("STORE/jobs/two/disk/upper", TREE),
    "all layers at once": overlay_over("STORE/snapshots", TREE),
    "other options of an overlay": overlay_over(TREE, marks="redirect_dir=on,metacopy=on"),
    "an empty layer": overlay_over(TREE, "", TREE),
    "more layers than a job has": overlay_over(*[TREE] * (MAX_LAYERS + 2)),
    "one more capability": host(CapAdd=["SYS_ADMIN"]),
    "the default capabilities": host(CapDrop=[]),
    "no seccomp": host(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
    "new privileges": host(SecurityOpt=[]),
    "the host's network": host(NetworkMode="host"),
    "another container's network": host(NetworkMode="container:postgres"),
    "another sandbox's network": host(NetworkMode="container:fanout-test.sandbox.one.1"),
    "the host's processes": host(PidMode="host"),
    "the host's memory segments": host(IpcMode="host"),
    "the host's names": host(UTSMode="host"),
    "the host's users": host(UsernsMode="host"),
    "the host's cgroups": host(CgroupnsMode="host"),
    "a device": host(Devices=[{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda"}]),
    "a device by rule": host(DeviceCgroupRules=["b *:* rwm"]),
    "volumes of another container": host(VolumesFrom=["postgres"]),
    "unmasked paths": host(MaskedPaths=[]),
    "kernel settings": host(Sysctls={"kernel.core_pattern": "|/bin/sh"}),
    "published ports": host(PortBindings={"1/tcp": [{"HostPort": "1"}]}),
    "a log driver with an address": host(LogConfig={"Type": "syslog", "Config": {}}),
    "a restart policy": host(RestartPolicy={"Name": "always"}),
    "a group of the host": host(GroupAdd=["docker"]),
    "no memory limit": host(Memory=0),
    "root": top(User="0:0"),
    "another program": top(Entrypoint=["/bin/sh"]),
    "a program's arguments": top(Cmd=["-c", "id"]),
    "a hook of a health check": top(Healthcheck={"Test": ["CMD", "id"]}),
    "a variable": lambda c: c["Env"].append("LD_PRELOAD=/workspace/evil.so"),
    "no label of ours": top(Labels={"a": "b"}),
    "an unknown field": top(Surprise=1),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", ["sandbox", "steward", "steward with disks"])
def test_it_creates_no_other_container(
    proxy: Path, accepted: dict[str, dict[str, Any]], kind: str, attack: str
) -> None:
    config = copy.deepcopy(accepted[kind])
    ATTACKS[attack](config)
    if config == accepted[kind]:
        pytest.skip("This is how it is.")

    status, text = ask(proxy, "POST", "/v1.41/containers/create?name=fanout-test.x", config)

    assert status == 403, text
    assert docker("ps", "-aq", "--filter", "name=fanout-test.x") == ""


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/v1.41/containers/{other}/exec", {"Cmd": ["id"]}),
        ("POST", "/v1.41/exec/abc/start", {}),
        ("POST", "/v1.41/build", b""),
        ("POST", "/v1.41/images/create?fromImage=evil", b""),
        ("DELETE", "/v1.41/images/fanout/base", None),
        ("POST", "/v1.41/images/load", b""),
        ("GET", "/v1.41/images/json", None),
        ("POST", "/v1.41/commit?container={other}", {}),
        ("GET", "/v1.41/containers/json?all=1", None),
        ("GET", "/v1.41/containers/json?filters=" + quote('{"label":["com.docker"]}'), None),
        ("GET", "/v1.41/containers/{other}/json", None),
        ("GET", "/v1.41/containers/{other}/logs?stdout=1", None),
        ("GET", "/v1.41/containers/{other}/archive?path=/", None),
        ("PUT", "/v1.41/containers/{other}/archive?path=/", b"tar"),
        ("PUT", "/v1.41/containers/{other}/archive?path=/opt", b"another steward's code"),
        ("POST", "/v1.41/containers/{other}/start", None),
        ("POST", "/v1.41/containers/{other}/kill", None),
        ("POST", "/v1.41/containers/{other}/update", {"Memory": 0}),
        ("POST", "/v1.41/containers/{other}/rename?name=x", None),
        ("POST", "/v1.41/containers/{other}/rename?name=fanout-x", None),
        ("DELETE", "/v1.41/containers/{other}?v=True&link=False&force=True", None),
        ("DELETE", "/v1.41/containers/{other}?link=True", None),
        ("POST", "/v1.41/containers/prune", None),
        ("GET", "/v1.41/volumes", None),
        ("DELETE", "/v1.41/volumes/{other}", None),
        ("POST", "/v1.41/volumes/create", {"Name": "x", "Driver": "local"}),
        (
            "POST",
            "/v1.41/volumes/create",
            {
                "Name": "fanout-x",
                "Driver": "local",
                "DriverOpts": {"type": "none", "o": "bind", "device": "/"},
                "Labels": {"fanout.role": "store"},
            },
        ),
        ("POST", "/v1.41/networks/create", {"Name": "x"}),
        ("POST", "/v1.41/swarm/init", {}),
        ("POST", "/v1.41/plugins/pull?remote=x", None),
        ("GET", "/v1.41/events", None),
        ("POST", "/session", None),
        ("POST", "/grpc", None),
        ("GET", "/v1.41/system/df", None),
        ("GET", "/v1.41/../containers/json", None),
        ("GET", "/v1.41//containers/json", None),
        ("GET", "/v1.41/containers/%6a%73on", None),
        ("GET", "/v1.41/images/..%2f..%2fcontainers/json", None),
        ("GET", "/v1.41/images/../containers/{other}/json", None),
        ("GET", "http://other/v1.41/info", None),
        ("GET", "/v9.41/info", None),
        ("TRACE", "/v1.41/info", None),
    ],
)
def test_it_passes_no_other_call(
    proxy: Path, other: str, method: str, target: str, body: object
) -> None:
    status, text = ask(proxy, method, target.format(other=other), body)

    assert status == 403, text
    assert "fanout's engine proxy refuses this call" in text
    assert docker("inspect", "--format", "{{.State.Status}}", other).strip() == "created"


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """The name of somebody else's container, and of somebody else's volume."""
    name = f"somebody-{secrets.token_hex(4)}"
    docker("volume", "create", name)
    docker("create", "--name", name, "--network", "none", "-v", f"{name}:/data", "fanout/base")
    yield name
    docker("rm", "-f", name)
    docker("volume", "rm", name)


def test_a_field_that_is_named_twice_is_refused(
    proxy: Path, accepted: dict[str, dict[str, Any]]
) -> None:
    text = json.dumps(accepted["sandbox"])
    twice = text[:-1] + ', "HostConfig": {"Privileged": true}}'

    status, _ = ask(proxy, "POST", "/v1.41/containers/create?name=fanout-x", twice.encode())

    assert status == 403


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1.41/info HTTP/1.1\r\nHost: d\r\n\r\nGET /v1.41/images/json HTTP/1.1\r\nHost: d\r\n\r\n",
        (
            b"POST /v1.41/containers/x/start HTTP/1.1\r\nHost: d\r\nContent-Length: 0\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1.41/images/json HTTP/1.1\r\n\r\n"
        ),
        (
            b"GET /v1.41/info HTTP/1.1\r\nHost: d\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n"
            b"GET /v1.41/images/json HTTP/1.1\r\nHost: d\r\n\r\n"
        ),
        b"GET /v1.41/info\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1.41/info HTTP/1.1\r\nHost: d\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /v1.41/containers/create?name=fanout-x HTTP/1.1\r\nHost: d\r\n"
        b"Content-Length: 99999999\r\n\r\n" + b"{" * 1000,
    ],
)
def test_nothing_is_smuggled_behind_a_request(proxy: Path, request_bytes: bytes) -> None:
    received = raw(proxy, request_bytes)

    assert b"RepoTags" not in received
    assert received.count(b"HTTP/1.1 ") <= 1
    assert ask(proxy, "GET", "/v1.41/info")[0] == 200


def test_deeply_nested_json_is_refused(proxy: Path) -> None:
    body = b"[" * 100_000

    status, _ = ask(
        proxy, "POST", "/v1.41/containers/create?" + urlencode({"name": "fanout-x"}), body
    )

    assert status == 403
