"""Attempts to reach the engine, the host, the cloud and other sandboxes over a network."""

from __future__ import annotations

import pytest

from fanout.workers.sandbox.protocol import Command
from tests.adversarial.escape_lab import Lab, assert_refused

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

TARGETS = {
    "the cloud's metadata": ("169.254.169.254", 80),
    "the cloud's metadata over IPv6": ("fd00:ec2::254", 80),
    "the container's metadata": ("169.254.170.2", 80),
    "the engine on the bridge": ("172.17.0.1", 2375),
    "the engine with TLS on the bridge": ("172.17.0.1", 2376),
    "the host's ssh on the bridge": ("172.17.0.1", 22),
    "Redis on its own loopback": ("127.0.0.1", 6379),
    "Redis on the host's bridge": ("172.17.0.1", 6379),
    "the host's loopback by another name": ("127.0.0.2", 6379),
    "the loopback of IPv6": ("::1", 6379),
    "the proxy that it was not given": ("127.0.0.1", 3128),
    "a private network": ("10.0.0.1", 80),
    "another private network": ("192.168.0.1", 80),
    "the internet": ("192.0.2.1", 443),
    "the internet over IPv6": ("2001:db8::1", 443),
    "a mapped address": ("::ffff:169.254.169.254", 80),
    "a broadcast address": ("255.255.255.255", 80),
    "the address zero": ("0", 6379),
}


@pytest.mark.representative
@pytest.mark.parametrize("target", TARGETS)
def test_a_job_that_connects_to(lab: Lab, target: str) -> None:
    address = TARGETS[target]
    kind = "socket.AF_INET6" if ":" in address[0] else "socket.AF_INET"
    program = f"""
def connect():
    link = socket.socket({kind})
    link.settimeout(2)
    link.connect({address!r})
refused(connect)
"""
    assert_refused(lab.python(program))


@pytest.mark.parametrize("port", [53, 123, 514, 4789])
def test_a_job_that_sends_datagrams_to_port(lab: Lab, port: int) -> None:
    program = f"""
for host in ("8.8.8.8", "172.17.0.1", "169.254.169.253"):
    refused(lambda: socket.socket(2, 2).sendto(b"x", (host, {port})))
"""
    assert_refused(lab.python(program))


def test_a_job_that_resolves_names(lab: Lab) -> None:
    program = """
for name in ("example.com", "host.docker.internal", "metadata.google.internal", "redis"):
    try:
        print("OUT", socket.getaddrinfo(name, 80))
    except OSError:
        print("REFUSED", name)
"""
    assert_refused(lab.python(program))


@pytest.mark.representative
@pytest.mark.parametrize(
    "path",
    ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
     "/run/podman/podman.sock", "/run/user/0/docker.sock", "/run/systemd/private",
     "/run/dbus/system_bus_socket", "/proc/1/root/run/docker.sock"],
)  # fmt: skip
def test_a_job_that_connects_to_a_socket_of_the_host(lab: Lab, path: str) -> None:
    assert_refused(lab.python(f"refused(socket.socket(1, 1).connect, {path!r})"))


def test_a_job_that_looks_for_sockets_of_the_host(lab: Lab) -> None:
    assert (
        lab.shell(
            "find / -xdev -type s 2>/dev/null; cut -d' ' -f8 /proc/net/unix | tail -n +2 | sort -u"
        ).strip()
        == ""
    )


def test_a_job_that_connects_to_abstract_sockets_of_the_host(lab: Lab) -> None:
    names = ["/containerd-shim/", "/tmp/.X11-unix/X0", "/org/kernel/udev/udevd", "dbus"]
    program = f"for name in {names!r}:\n    refused(socket.socket(1, 1).connect, chr(0) + name)"

    assert_refused(lab.python(program))


def test_a_job_that_speaks_to_its_neighbour_by_an_abstract_socket(lab: Lab) -> None:
    lab.shell("""setsid python3 -c 'import socket, time
link = socket.socket(1, 1); link.bind(chr(0) + "meet"); link.listen(); time.sleep(5)' >/dev/null 2>&1 &
sleep 0.3""")
    inside = "import socket; socket.socket(1, 1).connect(chr(0) + 'meet'); print('met')"
    met = lab.do(lab.neighbour.run(Command(argv=["python3", "-c", inside])))

    assert "met" not in met.output.decode().splitlines()


def test_a_job_that_speaks_to_its_neighbour_by_shared_memory(lab: Lab) -> None:
    lab.shell(
        "echo secret > /dev/shm/meet; ipcmk -M 1024 >/dev/null 2>&1; ipcmk -Q >/dev/null 2>&1"
    )
    met = lab.do(
        lab.neighbour.run(
            Command(
                argv="cat /dev/shm/meet; tail -n +2 /proc/sysvipc/shm /proc/sysvipc/msg | grep [0-9]"
            )
        )
    )

    assert b"secret" not in met.output
    assert not [line for line in met.output.decode().splitlines() if line.strip()[:1].isdigit()]


def test_a_job_that_makes_interfaces_and_routes(lab: Lab) -> None:
    program = """
import fcntl
link = socket.socket(2, 2)
for request in (0x890B, 0x8914, 0x8916, 0x8924):  # route, flags, addresses
    refused(fcntl.ioctl, link, request, struct.pack("16s64s", b"lo", bytes(64)))
message = struct.pack("IHHIIBBHiII", 32, 16, 0x605, 1, 0, 0, 0, 0, 0, 0, 0)  # RTM_NEWLINK
def netlink():
    link = socket.socket(16, 3, 0)
    link.send(message)
    code = struct.unpack_from("i", link.recv(4096), 16)[0]
    if code < 0:
        raise OSError(-code, "refused")
refused(netlink)
"""
    assert_refused(lab.python(program))


def test_a_job_that_listens_is_heard_by_nobody_outside(lab: Lab) -> None:
    assert lab.shell("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '").split() == ["lo"]
