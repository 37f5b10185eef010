"""What `fanout doctor --fix` does: only what is safe, and what a check has found to be needed."""

from __future__ import annotations

from collections.abc import Sequence

from fanout.orchestrator.cli.checks.doctor_checks import BUILD_IMAGES, Check
from fanout.orchestrator.cli.checks.doctor_security import obeyed
from fanout.orchestrator.cli.checks.security_files import modes_to_fix
from fanout.orchestrator.cli.commands.setup.images import run_program
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import ExitCode
from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings


def fix_what_can_be(checks: Sequence[Check]) -> list[str]:
    """Fix what can be fixed without a person's decision; return what was done, one line each.

    What an installation without a worker has left on the engine is not removed: its Redis may come
    back.

    Args:
        checks: What was found.
    """
    return [*_close_files(), *_build_images(checks)]


def _close_files() -> list[str]:
    try:
        settings = load_settings()
    except InvalidSetting:  # the report says so
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
