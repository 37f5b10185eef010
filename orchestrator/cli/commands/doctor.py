"""`doctor`: check an installation, print how to fix what is missing, and fix it with `--fix`.

A problem is only fixed if that is safe and a check has found it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from ...configuration.settings import InvalidSetting, load_settings
from ..checks.check import Check
from ..checks.doctor_checks import BUILD_IMAGES, all_checks
from ..checks.security import modes_to_fix, obeyed, security_checks
from ..terminal import output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.options import AsJson
from ..terminal.waiting import waiting
from .images import run_program


def doctor(
    security: Annotated[
        bool, typer.Option("--security", help="Check for security problems instead.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Fix the problems that can be fixed safely, then check again."),
    ] = False,
    call: Annotated[
        bool,
        typer.Option(
            "--call",
            help="Also make one small request to each model: does it answer, stream, take tools?",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this installation and print how to fix problems.

    It checks settings, agents, models, Docker, images, blobs, Redis and workers. Exit code 1 if
    something that jobs need is missing.

    With --fix it builds images that are missing or out of date, and closes files and folders of
    yours that other users can read or change; it lists what it did; the report and the exit code
    are about the remaining problems. It removes nothing.
    """
    if security and call:
        raise UsageProblem("--call asks the models, --security does not: leave one of them out.")
    examine = security_checks if security else partial(all_checks, calls=call)
    with waiting("checking"):
        checks = asyncio.run(examine())
    done: list[str] = []
    if fix:
        done = fix_what_can_be(checks)
        for line in done:
            output.notice(f"Fixed: {line}")
        if not done:
            output.notice("Nothing could be fixed automatically; see the warnings.")
        with waiting("checking"):
            checks = asyncio.run(examine())
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        report = {"ok": not failed, "checks": [check._asdict() for check in checks]}
        output.document(report | ({"fixed": done} if fix else {}))
    else:
        _print(checks)
    raise typer.Exit(ExitCode.WORK_FAILED if failed else ExitCode.DONE)


def _print(checks: Sequence[Check]) -> None:
    rows = [
        (
            check.status,
            check.name,
            output.one_line(" → ".join(filter(None, (check.found, check.advice)))),
        )
        for check in checks
    ]
    output.table(("STATUS", "CHECK", "FOUND"), rows, state_column=0, wrapped=True)


def fix_what_can_be(checks: Sequence[Check]) -> list[str]:
    """Fix problems that need no person's decision; return what was done, one line each.

    Remains of an installation without a worker are not removed from the engine: its Redis may come
    back.

    Args:
        checks: The results of the checks.
    """
    return [*_close_files(), *_build_images(checks)]


def _close_files() -> list[str]:
    try:
        settings = load_settings()
    except InvalidSetting:  # the report shows it
        return []
    done = []
    for path, mode in list(modes_to_fix(settings, obeyed(settings))):
        try:
            path.chmod(mode)
        except OSError as error:
            output.notice(f"{path} could not be closed: {error.strerror}.")
        else:
            done.append(f"{path}: mode {mode:o}, closed to other users")
    return done


def _build_images(checks: Sequence[Check]) -> list[str]:
    if not any(check.advice == BUILD_IMAGES for check in checks):
        return []
    if run_program(["build"], quiet=True) != ExitCode.DONE:
        return []
    return ["the images of sandboxes are built"]
