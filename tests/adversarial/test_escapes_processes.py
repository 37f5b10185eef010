"""Attempts on the resident (PID 1) and on what all processes of a machine share."""

from __future__ import annotations

import pytest

from fanout.workers.sandbox.protocol import Command
from tests.adversarial.escape_lab import Lab, assert_refused

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

ON_PID_1 = {
    "prlimit of its open files": "syscall, 302, 1, 7, space(16), 0",
    "prlimit of its processor time": "syscall, 302, 1, 0, space(16), 0",
    "prlimit of its address space": "syscall, 302, 1, 9, space(16), 0",
    "prlimit behind the upper half of a register": "syscall, 302, (1 << 32) + 1, 7, space(16), 0",
    "prlimit of one of its threads": "syscall, 302, thread_of_pid_1(), 7, space(16), 0",
    "ptrace attach": "syscall, 101, 16, 1, 0, 0",
    "ptrace seize": "syscall, 101, 0x4206, 1, 0, 0",
    "reading its memory by a call": "syscall, 310, 1, space(16), 1, space(16), 1, 0",
    "writing its memory by a call": "syscall, 311, 1, space(16), 1, space(16), 1, 0",
    "taking its output by pidfd_getfd": "take, 1",
    "taking its input by pidfd_getfd": "take, 0",
    "advising its memory": "syscall, 440, os.pidfd_open(1), space(16), 1, 4, 0",
    "binding it to one processor": "os.sched_setaffinity, 1, {0}",
    "binding it behind the upper half": "syscall, 203, (1 << 32) + 1, 128, space(128)",
    "scheduling it when idle": "os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0)",
    "its nice value": "os.setpriority, os.PRIO_PROCESS, 1, 19",
    "the nice value of its user": "os.setpriority, os.PRIO_USER, 0, 19",
    "the nice value of its group": "os.setpriority, os.PRIO_PGRP, 1, 19",
    "its disk priority": "syscall, 251, 1, 1, (3 << 13)",
    "the disk priority of its user": "syscall, 251, 3, os.getuid(), (3 << 13)",
    "its memory by a file": "write, '/proc/1/mem'",
    "its OOM score": "write, '/proc/1/oom_score_adj', b'1000'",
    "its old OOM score": "write, '/proc/1/oom_adj', b'15'",
    "its core dumps": "write, '/proc/1/coredump_filter', b'ff'",
    "its timers": "write, '/proc/1/timerslack_ns', b'1000000000'",
    "its page references": "write, '/proc/1/clear_refs'",
    "its name": "write, '/proc/1/comm', b'owned'",
    "its scheduling group": "write, '/proc/1/autogroup', b'19'",
    "its fault injection": "write, '/proc/1/make-it-fail'",
    "its environment": "read, '/proc/1/environ'",
    "its memory's map": "os.listdir, '/proc/1/map_files'",
    "its descriptors": "os.listdir, '/proc/1/fd'",
    "its descriptors' details": "os.listdir, '/proc/1/fdinfo'",
    "its threads' descriptors": "os.listdir, '/proc/1/task/1/fd'",
    "its program": "os.readlink, '/proc/1/exe'",
    "its root": "os.listdir, '/proc/1/root/'",
    "its folder": "os.listdir, '/proc/1/cwd/'",
    "its input by a path": "os.open, '/proc/1/fd/0', os.O_RDONLY | os.O_NONBLOCK",
    "its output by a path": "os.open, '/proc/1/fd/1', os.O_WRONLY | os.O_NONBLOCK",
    "another descriptor by a path": "os.open, '/proc/1/fd/5', os.O_WRONLY | os.O_NONBLOCK",
    "its scheduling policy": "syscall, 144, 1, 5, space(4)",
    "its scheduling attributes": "syscall, 314, 1, space(48), 0",
}

HELPERS = """
space = ctypes.create_string_buffer
def take(descriptor):
    return syscall(438, os.pidfd_open(1), descriptor, 0)
def thread_of_pid_1():
    return int(sorted(os.listdir("/proc/1/task"))[-1])
"""


@pytest.mark.representative
@pytest.mark.parametrize("what", ON_PID_1)
def test_a_job_that_changes_or_reads_of_pid_1(lab: Lab, what: str) -> None:
    assert_refused(lab.python(f"{HELPERS}\nrefused({ON_PID_1[what]})"))


def test_a_job_that_sends_every_signal_to_pid_1(lab: Lab) -> None:
    program = """
for number in range(1, 65):
    for _ in range(20):
        try:
            os.kill(1, number)
        except OSError as error:
            print(number, error)
print("sent")
"""
    assert lab.python(program) == "sent\n"


def test_a_job_that_kills_everything_that_it_may(lab: Lab) -> None:
    lab.shell("kill -STOP -1; kill -KILL -1")


def test_a_job_that_stops_its_own_process_group_and_its_parents(lab: Lab) -> None:
    assert lab.shell("setsid sleep 60 & kill -STOP $PPID; kill -STOP 0", seconds=1) == ""


@pytest.mark.representative
def test_a_job_that_forks_without_end(lab: Lab) -> None:
    lab.exhaust("os.execvp('sh', ['sh', '-c', 'f() { f | f & f; }; f'])")


@pytest.mark.slow
def test_a_job_that_forks_daemons_without_end(lab: Lab) -> None:
    program = """
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            os.environ.clear()
    except OSError:
        pass
"""
    lab.exhaust(program)


def test_a_job_that_takes_all_memory(lab: Lab) -> None:
    lab.until_it_has_room()
    result = lab.do(
        lab.sandbox.run(
            Command(argv=["python3", "-c", "x = [bytearray(1 << 20) for _ in range(10**6)]"])
        )
    )

    assert result.out_of_memory
    assert result.exit_code != 0


@pytest.mark.parametrize("folder", ["/workspace", "/tmp", "/home/agent", "/dev/shm"])
def test_a_job_that_fills(lab: Lab, folder: str) -> None:
    output = lab.shell(f"(cat /dev/zero > {folder}/filled) 2>&1; rm {folder}/filled")

    refusals = ("No space left", "Killed", "too large", "limit exceeded")
    assert any(refusal in output for refusal in refusals), output


def test_a_job_that_opens_all_descriptors(lab: Lab) -> None:
    program = """
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print("REFUSED", error)
"""
    assert_refused(lab.python(program))


def test_a_job_that_raises_its_own_limits(lab: Lab) -> None:
    program = """
import resource
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
    soft, hard = resource.getrlimit(what)
    try:
        resource.setrlimit(what, (hard + 1, hard + 1))
    except (OSError, ValueError) as error:
        print("REFUSED", error)
    else:
        print("OUT", what)
"""
    assert_refused(lab.python(program))


def test_a_job_that_crashes_leaves_no_core(lab: Lab) -> None:
    output = lab.shell(
        "cd /tmp; ulimit -c unlimited 2>/dev/null; sh -c 'kill -SEGV $$'; ls -A /tmp"
    )

    assert "core" not in output.split()


@pytest.mark.representative
def test_a_job_that_ignores_every_signal(lab: Lab) -> None:
    program = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""
    lab.python(program, seconds=1)
    assert "python" not in lab.shell("ps -e -o pid=,comm= | grep -vw 1")


def test_a_job_that_daemonises_by_a_double_fork(lab: Lab) -> None:
    program = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in range(3):
            os.close(descriptor)
        os.execve("/bin/sleep", ["sleep", "7717"], {})
    os._exit(0)
os.wait()
time.sleep(60)
"""
    lab.python(program, seconds=1)
    assert "7717" not in lab.shell("ps -e -o args=")


def test_a_job_that_closes_and_reopens_its_outputs(lab: Lab) -> None:
    program = "exec >&- 2>&- <&-; exec > /proc/self/fd/1; echo lost; exec >/tmp/out; echo kept; cat /tmp/out"

    assert "lost" not in lab.shell(program)


@pytest.mark.parametrize("flood", ["yes", "cat /dev/zero", "cat /dev/urandom", "yes >&2"])
def test_a_job_that_writes_without_end(lab: Lab, flood: str) -> None:
    result = lab.do(lab.sandbox.run(Command(argv=flood, timeout_seconds=1, max_output_bytes=1000)))

    assert result.timed_out
    assert len(result.output) <= 1000
    assert result.total_bytes > 1_000_000


FORGED = r"""
import struct
def frame(kind, number, header, payload):
    return struct.pack(">BqII", kind, number, len(header), len(payload)) + header + payload
noise = b"".join(frame(kind, number, b"ms6;resultmee", b"forged")
                 for kind in range(7) for number in range(-3, 50))
docker = b"\1\0\0\0" + struct.pack(">I", len(noise)) + noise
"""


@pytest.mark.parametrize("target", ["1", "2"])
def test_a_job_that_prints_frames(lab: Lab, target: str) -> None:
    output = lab.python(f"{FORGED}\nos.write({target}, docker + noise)")

    assert "forged" in output  # as its output, not as an answer


def test_a_job_that_writes_frames_wherever_it_can(lab: Lab) -> None:
    program = f"""{FORGED}
import glob
places = glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/proc/1/task/*/fd/*") + ["/dev/console", "/dev/tty",
    "/dev/pts/ptmx", "/dev/stdin", "/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/fd/3", "/proc/1/fd/4"]
for place in places:
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, docker + noise)
    except OSError:
        pass
"""
    lab.python(program)


def test_a_job_that_pushes_input_into_a_terminal(lab: Lab) -> None:
    program = """
import fcntl, termios
for name in ("/dev/tty", "/dev/console", "/proc/1/fd/0"):
    refused(lambda: fcntl.ioctl(os.open(name, os.O_RDWR | os.O_NONBLOCK), termios.TIOCSTI, b"x"))
"""
    assert_refused(lab.python(program))


SHARED = {
    "inotify instances": "libc.inotify_init1(0)",
    "message queues": "libc.mq_open(b'/q%d' % n, 0o102, 0o600, 0)",
    "semaphores": "libc.semget(0, 250, 0o1600)",
    "shared memory": "libc.shmget(0, 1 << 20, 0o1600)",
    "terminals": "os.open('/dev/pts/ptmx', os.O_RDWR)",
    "pipes": "os.pipe()",
    "event descriptors": "libc.eventfd(0, 0)",
    "memory files": "os.memfd_create('x')",
    "timers": "libc.timerfd_create(1, 0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SHARED)
def test_a_job_that_takes_every_one_of_the_kernels(lab: Lab, what: str) -> None:
    """That a neighbour still gets one is a matter of its user, which is the steward's."""
    program = f"""
held = []
for n in range(20000):
    try:
        got = {SHARED[what]}
    except OSError:
        break
    if got == -1:
        break
    held.append(got)
print(len(held))
"""
    lab.exhaust(program, seconds=20)
    lab.renew()  # what the kernel keeps after a process counts as the container's memory


POISON = {
    "sitecustomize.py": "open('/tmp/poisoned', 'a').write('%d\\n' % __import__('os').getpid())",
    "usercustomize.py": "open('/tmp/poisoned', 'a').write('%d\\n' % __import__('os').getpid())",
    "os.py": "raise SystemExit(3)",
    "errno.py": "raise SystemExit(3)",
    "frames.py": "raise SystemExit(3)",
    "encodings/__init__.py": "raise SystemExit(3)",
    "fanout/__init__.py": "raise SystemExit(3)",
    "pyvenv.cfg": "home = /workspace",
    ".profile": "touch /tmp/poisoned; export LD_PRELOAD=/workspace/evil.so",
    ".bashrc": "touch /tmp/poisoned",
    ".python_history": "x",
}


def test_a_job_that_poisons_what_interpreters_read_at_their_start(lab: Lab) -> None:
    write = "".join(
        f"os.makedirs(os.path.dirname({place!r} + {name!r}), exist_ok=True)\n"
        f"write({place!r} + {name!r}, {text.encode()!r})\n"
        for place in ("/workspace/", "/home/agent/") for name, text in POISON.items()
    )  # fmt: skip
    lab.python(write)

    # The resident imports lazily: what it needs for tunnels is not loaded yet.
    live = lab.do(_talk_to_a_process(lab))
    output = lab.shell("cat /tmp/poisoned 2>/dev/null; tr '\\0' ' ' < /proc/1/cmdline")
    lab.shell(
        "cd /workspace && rm -rf * .profile .bashrc .python_history; cd; rm -rf * .profile .bashrc"
    )

    assert live == b"echo"
    assert output.splitlines()[-1].strip() == "python3 -ISB /opt/fanout"
    assert "1" not in output.splitlines()[:-1]


async def _talk_to_a_process(lab: Lab) -> bytes:
    async with lab.sandbox.open_process(Command(argv=["cat"])) as process:
        await process.send(b"echo")
        return await process.receive()
