"""Takes privileges from the commands of the local sandbox.

They run as the worker's user. That keeps them from the worker's keys only while they have not the
capability to trace other processes: an undumpable worker is closed to its own user, and to root
without CAP_SYS_PTRACE. So root's commands keep the capabilities that ordinary installations and
tests use, and none that reaches other processes, devices or the kernel. Nobody's commands gain
privileges by set-user-ID programs such as sudo.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from fanout.workers.sandbox.errors import SandboxStartFailed

KEPT_CAPABILITIES = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid"),
    "net_bind_service",
)
"""Of root's: on files and on processes of other users, to whom a command may switch."""

_SETPCAP, _SYS_PTRACE = 8, 19


def confinement() -> tuple[str, ...]:
    """Return the beginning of the command line that runs a program without those privileges.

    It blocks for a few milliseconds.

    Raises:
        SandboxStartFailed: commands would be able to read the memory of the worker.
    """
    has = _effective_capabilities()
    argv = ["setpriv", "--no-new-privs"]
    if has >> _SETPCAP & 1:
        kept = "".join(f",+{name}" for name in KEPT_CAPABILITIES)
        argv += ["--inh-caps=-all", f"--bounding-set=-all{kept}"]
    argv.append("--")
    try:
        done = subprocess.run([*argv, "true"], capture_output=True, check=False)  # noqa: S603 - our own
        works = done.returncode == 0
    except OSError:
        works = False
    if works and (has >> _SETPCAP & 1 or not has >> _SYS_PTRACE & 1):
        return tuple(argv)
    if has >> _SYS_PTRACE & 1:
        raise SandboxStartFailed(
            "Commands would run with the right to read this worker's memory, and setpriv cannot "
            "take it from them: install util-linux, or run the worker as an unprivileged user."
        )
    return ()


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
