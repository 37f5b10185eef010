"""Attempts to leave a sandbox through the kernel: calls, capabilities, namespaces, devices."""

from __future__ import annotations

import platform

import pytest

from tests.adversarial.escape_lab import Lab, assert_refused

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64 calls"),
]

CALLS = {
    "mounts a file system": "165, b'none', b'/tmp', b'tmpfs', 0, 0",
    "mounts the host's root by a bind": "165, b'/proc/1/root', b'/tmp', 0, 4096, 0",
    "unmounts the mask of /proc/kcore": "166, b'/proc/kcore', 2",
    "unmounts the workspace": "166, b'/workspace', 2",
    "changes its root": "161, b'/tmp'",
    "pivots its root": "155, b'/tmp', b'/tmp'",
    "opens a file system's context": "430, b'tmpfs', 0",
    "clones a mount tree": "428, -100, b'/', 1",
    "moves a mount": "429, -100, b'/workspace', -100, b'/tmp', 0",
    "changes a mount's attributes": "442, -100, b'/', 0, space(32), 32",
    "picks a mounted file system": "433, -100, b'/', 0",
    "opens a file by its handle": "304, 3, space(136), 0",
    "makes a file's handle": "303, -100, b'/', space(136), space(8), 0",
    "adds a key to a keyring": "248, b'user', b'x', b'y', 1, -3",
    "requests a key": "249, b'user', b'x', 0, -3",
    "controls a keyring": "250, 0, -3, 1",
    "loads a BPF program": "321, 5, space(128), 128",
    "makes a BPF map": "321, 0, space(128), 128",
    "opens performance counters": "298, space(128), 0, -1, -1, 0",
    "handles page faults": "323, 1",
    "sets up io_uring": "425, 8, space(128)",
    "enters io_uring": "426, 0, 0, 0, 0",
    "loads a kernel module from memory": "175, b'x', 1, b''",
    "loads a kernel module from a file": "313, 0, b'', 0",
    "unloads a kernel module": "176, b'overlay', 0",
    "loads another kernel": "246, 0, 0, 0, 0",
    "loads another kernel from a file": "320, 0, 0, 0, 0, 0",
    "reboots the machine": "169, 0xfee1dead, 672274793, 0x1234567, 0",
    "turns swap on": "167, b'/workspace/swap', 0",
    "turns swap off": "168, b'/dev/sda'",
    "sets the time": "164, space(16), 0",
    "sets a clock": "227, 0, space(16)",
    "sets the host's name": "170, b'owned', 5",
    "sets the domain's name": "171, b'owned', 5",
    "raises its I/O privilege": "172, 3",
    "asks for I/O ports": "173, 0x80, 1, 1",
    "changes its descriptor table": "154, 1, space(16), 16",
    "turns accounting on": "163, b'/workspace/acct'",
    "sets quotas": "179, 0x800002, b'/dev/sda', 0, 0",
    "watches the whole file system": "300, 0, 0",
    "reads the kernel's log": "103, 3, space(64), 64",
    "clears the kernel's log": "103, 5, 0, 0",
    "moves the pages of PID 1": "279, 1, 0, 0, 0, 0, 0",
    "migrates the pages of PID 1": "256, 1, 0, 0, 0",
    "sets a memory policy": "238, 0, 0, 0",
    "compares kernel pointers of PID 1": "312, 1, os.getpid(), 0, 0, 0",
    "makes data executable everywhere": "135, 0x0400000",
    "turns address randomisation off": "135, 0x0040000",
    "hangs up the terminal": "153",
    "asks for file system types": "139, 3",
    "clones with a structure that no filter sees": "435, space(88), 88",
    "mounts by the x32 numbers": "0x40000000 + 165, b'none', b'/tmp', b'tmpfs', 0, 0",
    "unshares by the x32 numbers": "0x40000000 + 272, 0x10000000",
    "raises a capability of its own": "157, 47, 2, 21, 0, 0",
    "becomes root": "105, 0",
    "becomes root's group": "106, 0",
    "joins root's group": "116, 1, space(4)",
    "becomes root for files": "117, 0, 0, 0",
    "grants itself capabilities": "126, struct.pack('Ii', 0x20080522, 0), b'\\xff' * 24",
}  # fmt: skip

NAMESPACES = {
    "user": 0x10000000, "mount": 0x00020000, "network": 0x40000000, "process": 0x20000000,
    "ipc": 0x08000000, "host name": 0x04000000, "cgroup": 0x02000000, "time": 0x80,
}  # fmt: skip

SOCKETS = {
    "packets of every kind": "17, 3, 768",
    "raw IP": "2, 3, 1",
    "raw IPv6": "10, 3, 58",
    "the kernel's ciphers": "38, 5, 0",
    "the hypervisor": "40, 1, 0",
    "the kernel's ciphers, behind the upper half of a register": "(1 << 32) + 38, 5, 0",
    "the hypervisor, behind the upper half of a register": "(1 << 32) + 40, 1, 0",
    "bluetooth": "31, 3, 0",
    "a vehicle's bus": "29, 3, 1",
    "a cluster (TIPC)": "30, 2, 0",
    "IPsec keys": "15, 3, 2",
    "express data paths": "44, 3, 0",
    "amateur radio": "3, 5, 0",
    "the audit log": "16, 3, 9",
    "the firewall": "16, 3, 12",
    "devices' events": "16, 3, 15",
    "other processes' sockets": "16, 3, 4",
    "the kernel's connector": "16, 3, 11",
}

PAIRS = {"a cluster (TIPC)": "30, 2, 0", "the internet": "2, 1, 0"}

UNWRITABLE = [
    "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/file-max",
    "/proc/sys/net/ipv4/ip_forward", "/proc/irq/0/smp_affinity", "/proc/self/uid_map",
    "/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/sys/power/state",
    "/sys/kernel/profiling", "/sys/module/kernel/parameters/panic",
    "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/memory/notify_on_release",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/cgroup.procs",
    "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/devices/devices.allow",
    "/dev/kmsg", "/dev/mem", "/dev/port", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/kvm",
    "/dev/net/tun", "/dev/loop-control", "/dev/mapper/control", "/dev/console", "/dev/vsock",
    "/etc/passwd", "/etc/ld.so.preload", "/usr/bin/python3", "/opt/fanout/__main__.py",
    "/opt/fanout/fanout/workers/sandbox/inside/frames.py",
]  # fmt: skip

UNREADABLE = [
    "/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats",
    "/proc/1/environ", "/proc/1/mem", "/proc/1/auxv", "/proc/1/syscall", "/proc/1/stack",
    "/sys/kernel/debug/tracing/trace", "/sys/kernel/security/lockdown", "/sys/firmware/dmi/tables/DMI",
    "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/sda", "/dev/vda", "/etc/shadow",
    "/proc/sys/kernel/cad_pid", "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/slabinfo",
]  # fmt: skip


BATCH = """
for name, number, arguments in attempts:
    if os.fork() == 0:
        try:
            print(name, "OUT", syscall(number, *arguments), sep="\\t", flush=True)
        except OSError as error:
            print(name, "REFUSED", error.errno, sep="\\t", flush=True)
        os._exit(0)
    if os.WIFSIGNALED(os.wait()[1]):
        print(name, "REFUSED", "killed", sep="\\t", flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(shared_lab: Lab) -> dict[str, str]:
    """What became of each call, each made by a process of its own."""
    calls = [
        *((name, arguments) for name, arguments in CALLS.items()),
        *((f"socket {name}", f"41, {arguments}") for name, arguments in SOCKETS.items()),
        *((f"pair {name}", f"53, {arguments}, space(8)") for name, arguments in PAIRS.items()),
        *((f"unshare {name}", f"272, {flag}") for name, flag in NAMESPACES.items()),
        *((f"clone {name}", f"56, {flag} | 17, 0, 0, 0, 0") for name, flag in NAMESPACES.items()),
    ]
    table = ",".join(f"({name!r}, *first_and_rest({rest}))" for name, rest in calls)
    program = (
        "space = ctypes.create_string_buffer\n"
        "def first_and_rest(number, *rest): return number, rest\n"
        f"attempts = [{table}]\n{BATCH}"
    )
    output = shared_lab.python(program, max_output_bytes=100_000)
    shared_lab.check_all_is_well()
    return {line.split("\t")[0]: line.split("\t")[1] for line in output.splitlines()}


@pytest.mark.representative
@pytest.mark.parametrize("attempt", CALLS)
def test_a_job_that(outcomes: dict[str, str], attempt: str) -> None:
    assert outcomes[attempt] == "REFUSED"


@pytest.mark.representative
@pytest.mark.parametrize("kind", NAMESPACES)
def test_a_job_that_makes_a_namespace_of_its_own(outcomes: dict[str, str], kind: str) -> None:
    assert outcomes[f"unshare {kind}"] == "REFUSED"
    if kind != "time":  # its bit is a part of the signal's number there
        assert outcomes[f"clone {kind}"] == "REFUSED"


@pytest.mark.parametrize("what", SOCKETS)
def test_a_job_that_opens_a_socket_to(outcomes: dict[str, str], what: str) -> None:
    assert outcomes[f"socket {what}"] == "REFUSED"


@pytest.mark.parametrize("what", PAIRS)
def test_a_job_that_opens_a_pair_of_sockets_of(outcomes: dict[str, str], what: str) -> None:
    assert outcomes[f"pair {what}"] == "REFUSED"


@pytest.mark.parametrize("kind", ["mnt", "net", "pid", "user", "ipc", "uts", "cgroup"])
def test_a_job_that_enters_a_namespace_of_pid_1(lab: Lab, kind: str) -> None:
    program = f"""
def enter(pid):
    return syscall(308, os.open(f"/proc/{{pid}}/ns/{kind}", os.O_RDONLY), 0)
refused(enter, 1)
refused(enter, "self")
"""
    assert_refused(lab.python(program))


def test_a_job_that_writes_to_the_kernels_files_and_devices(lab: Lab) -> None:
    output = lab.python(f"for path in {UNWRITABLE!r}:\n    refused(write, path)")

    assert_refused(output)
    assert len(output.splitlines()) == len(UNWRITABLE)


def test_a_job_that_reads_the_kernels_files_and_devices(lab: Lab) -> None:
    program = f"""
for path in {UNREADABLE!r}:
    try:
        found = read(path)
    except OSError:
        print("REFUSED", path)
    else:
        print("REFUSED empty" if not found else "OUT", path)
"""
    assert_refused(lab.python(program))


def test_a_job_that_asks_for_kernel_addresses(lab: Lab) -> None:
    addresses = lab.shell("cut -d' ' -f1 /proc/kallsyms 2>/dev/null | sort -u | head -2")

    assert addresses.strip() in {"", "0" * 16}


def test_a_job_that_makes_a_whiteout_for_the_overlay(lab: Lab) -> None:
    output = lab.shell("mknod d c 0 0 2>/dev/null && echo OUT || echo REFUSED")

    assert_refused(output)  # elsewhere the kernel allows this one device, which leads nowhere


@pytest.mark.parametrize("kind", ["c 1 1", "b 8 0", "b 253 0", "c 10 200"])
def test_a_job_that_makes_a_device(lab: Lab, kind: str) -> None:
    for folder in ("/workspace", "/tmp", "/home/agent", "/dev/shm"):
        assert_refused(
            lab.shell(f"mknod {folder}/d {kind} 2>/dev/null && echo OUT || echo REFUSED")
        )


def test_a_job_that_gives_a_file_to_root(lab: Lab) -> None:
    program = """
for folder in ("/workspace", "/tmp", "/home/agent"):
    path = folder + "/gift"
    write(path)
    refused(os.chown, path, 0, 0)
    refused(os.setxattr, path, "security.capability", bytes(20))
    refused(os.setxattr, path, "trusted.overlay.opaque", b"y")
    os.unlink(path)
"""
    assert_refused(lab.python(program))


def test_a_job_that_uses_setuid_programs(lab: Lab) -> None:
    program = """
for program in $(find / -xdev -perm /6000 -type f 2>/dev/null); do
  case $program in *su) timeout 2 $program -c 'id -u' < /dev/null;; *) ;; esac
done 2>/dev/null | grep -qx 0 && echo OUT || echo REFUSED
cp /bin/sh /workspace/sh && chmod 6755 /workspace/sh
export ME=$(id -u)
/workspace/sh -pc 'test $(id -u) = $ME -a $ME != 0 && grep -q "NoNewPrivs:.1" /proc/self/status' \\
  && echo REFUSED || echo OUT
rm /workspace/sh
"""
    assert_refused(lab.shell(program))


def test_a_job_that_uses_the_32_bit_door_of_the_processor(lab: Lab) -> None:
    program = """
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b815000000cd80c3"))  # mov eax, 21 (mount); int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
print("REFUSED" if result < 0 else "OUT", result)
"""
    output = lab.python(program)

    assert output == "" or output.startswith("REFUSED")  # killed, or told no
