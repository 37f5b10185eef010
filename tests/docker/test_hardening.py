from __future__ import annotations

import json

import pytest

from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command, Sandbox
from tests.docker import conftest
from tests.docker.conftest import make_sandbox_spec

pytestmark = conftest.ON_SHARED_PROVIDER
provider = conftest.provider_of_session


async def run_python(sandbox: Sandbox, code: str) -> str:
    result = await sandbox.run(Command(argv=["python3", "-c", code]))
    assert result.exit_code == 0, result.output
    return result.output.decode().strip()


async def test_a_job_has_no_privilege_to_use(provider: DockerProvider) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        status = (await sandbox.run(Command(argv="cat /proc/self/status"))).output.decode()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

        users = set(fields["Uid"].split())
        assert len(users) == 1
        assert int(users.pop()) >= 100_000
        assert fields["Gid"].split() == ["10001"] * 4
        assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
            "0" * 16
        }
        assert fields["NoNewPrivs"] == "1"
        assert fields["Seccomp"] == "2"


@pytest.mark.parametrize(
    "forbidden",
    [
        "echo x > /etc/x",
        "echo x > /opt/fanout/x",
        "echo x > /proc/sys/kernel/hostname",
        "echo c > /proc/sysrq-trigger",
        "mount -t tmpfs none /tmp",
        "unshare -U true",
        "unshare -n true",
        "mknod /tmp/device b 8 0",
        "chown 0:0 /workspace",
        "su -c true",
        "cat /proc/1/environ",
        "ls /proc/1/fd/ | grep .",
        "dmesg",
        "head -c1 /proc/kcore",
        "mkdir /sys/fs/cgroup/memory/x || mkdir /sys/fs/cgroup/x",
        "kill -9 1; sleep 0.2; test ! -d /proc/1",
        "ls /var/run/docker.sock",
    ],
)
async def test_what_would_lead_out_is_refused(provider: DockerProvider, forbidden: str) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        result = await sandbox.run(Command(argv=forbidden))

        assert result.exit_code != 0
        assert (await sandbox.run(Command(argv="true"))).exit_code == 0


async def test_dangerous_system_calls_and_sockets_are_refused(provider: DockerProvider) -> None:
    code = """
import ctypes, errno, json, socket
libc = ctypes.CDLL(None, use_errno=True)
calls = {"io_uring_setup": 425, "bpf": 321, "userfaultfd": 323, "keyctl": 250, "perf_event_open": 298,
         "open_by_handle_at": 304, "kexec_load": 246, "process_vm_readv": 310}
found = {}
for name, number in calls.items():
    libc.syscall(number, 0, 0, 0, 0, 0)
    found[name] = errno.errorcode[ctypes.get_errno()]
for family in (17, 38, 40):
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_SEQPACKET)
        found[family] = "open"
    except OSError as error:
        found[family] = errno.errorcode[error.errno]
print(json.dumps(found))
"""
    async with provider.open(make_sandbox_spec()) as sandbox:
        found = json.loads(await run_python(sandbox, code))

        assert set(found.values()) <= {"EPERM", "EACCES"}, found


async def test_there_is_no_network_but_the_loopback(provider: DockerProvider) -> None:
    code = """
import socket
print([name for _, name in socket.if_nameindex()])
for address in (("192.0.2.1", 80), ("169.254.169.254", 80), ("172.17.0.1", 80)):
    try:
        socket.create_connection(address, timeout=2)
        print("reached", address)
    except OSError:
        pass
"""
    async with (
        provider.open(make_sandbox_spec()) as first,
        provider.open(make_sandbox_spec()) as second,
    ):
        assert await run_python(first, code) == "['lo']"
        own = "import os; print(os.readlink('/proc/self/ns/net'))"

        assert await run_python(first, own) != await run_python(second, own)


async def test_the_environment_holds_nothing_of_ours(
    provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key-of-the-worker")
    async with provider.open(make_sandbox_spec()) as sandbox:
        names = set((await run_python(sandbox, "import os; print(*os.environ)")).split())

        assert names <= {
            "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_CTYPE", "HOSTNAME", "PWD", "FANOUT_COMMAND",
            "PYTHONDONTWRITEBYTECODE",
            "PYTEST_ADDOPTS", "MYPY_CACHE_DIR", "RUFF_CACHE_DIR", "HYPOTHESIS_STORAGE_DIRECTORY",
            "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR",
        }  # fmt: skip


@pytest.mark.slow
async def test_a_developers_tools_work_and_leave_no_by_products(provider: DockerProvider) -> None:
    script = """
set -e
printf 'def add(a, b):\\n    return a + b\\n' > calc.py
printf 'from calc import add\\n\\ndef test_add():\\n    assert add(1, 2) == 3\\n' > test_calc.py
pytest -q
git init -q . && git add -A && git commit -qm first && git status --porcelain
python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version
python3 -c 'import multiprocessing as m; print(m.get_context("fork").Pool(2).map(abs, [-1, -2]))'
python3 -c 'import threading; t = threading.Thread(target=print, args=("thread",)); t.start(); t.join()'
printf 'int main(void) { return 0; }' > /tmp/a.c && gcc -o /tmp/a /tmp/a.c && /tmp/a
rg -c add calc.py
"""
    async with provider.open(make_sandbox_spec()) as sandbox:
        result = await sandbox.run(Command(argv=script, timeout_seconds=60))

        assert result.exit_code == 0, result.output.decode()
        assert [entry.path for entry in await sandbox.list("/workspace")] == [
            "/workspace/.git", "/workspace/calc.py", "/workspace/test_calc.py",
        ]  # fmt: skip
