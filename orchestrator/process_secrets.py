"""Keeps the keys of a process from other processes of its user, and from its own children.

The kernel shows what a program was started with in `/proc/<pid>/environ`, whatever the program does
with its variables later, and lets every process of the same user read its memory. A command of the
local sandbox is such a process. So each of fanout's programs, before it does anything else,

- becomes undumpable: no other process without CAP_SYS_PTRACE, also of the same user, can open its
  `/proc/<pid>/environ`, `mem`, `fd` or `maps`, or trace it;
- overwrites the environment that it was started with, which hides it from root, too;
- keeps its variables in `os.environ` only, where libraries of Python find them. A child that is
  started without its own environment inherits the few that are not secrets.

A process with CAP_SYS_PTRACE can still read the memory: the local sandbox takes that capability
from its commands. The moment between a program's start and this module is not protected.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TERM", "COLORTERM", "NO_COLOR"),
        *("LANG", "LANGUAGE", "TZ", "TMPDIR", "COLUMNS", "LINES"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("OPENSSL_CONF", "OPENSSL_MODULES", "RES_OPTIONS", "MALLOC_ARENA_MAX"),
        *("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONFIG"),
        *("DOCKER_API_VERSION", "DOCKER_CONTEXT"),
    }
)
"""The variables that every child may have; any other may be a key."""
INHERITED_PREFIXES = ("LC_", "XDG_", "PYTHON")
SESSION = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK")
"""Variables that a person's own commands need to reach the person's session; jobs' commands do not
get them."""

_PR_SET_DUMPABLE = 4
_ENV_START, _ENV_END = 47, 48
"""The fields with these addresses in `/proc/self/stat`, counted after the program's name."""


def seal_process() -> None:
    """Hide this process's environment and memory from other processes, as far as possible.

    It has to be called before a program's threads and children exist. On systems other than Linux
    it only hides the variables from the children.
    """
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux = sys.platform == "linux"
    if linux:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # cannot fail with this value
    visible = inherited_environment()
    for name, value in os.environ.items():
        if name in visible:
            os.putenv(name, value)  # copies it out of the memory that is overwritten below
        else:
            os.unsetenv(name)  # `os.environ` keeps it
    if linux:
        _overwrite_first_environment()


def inherited_environment() -> dict[str, str]:
    """Return the variables of this process that any child may have."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }


def session_environment() -> dict[str, str]:
    """Return the variables of this process that lead a person's own commands to the session."""
    return {name: os.environ[name] for name in SESSION if name in os.environ}


def _overwrite_first_environment() -> None:
    """Overwrite the content of `/proc/self/environ` with zeros."""
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
