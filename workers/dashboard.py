"""`python -P -m fanout.workers.dashboard`: Flower, with the options of its FLOWER_… variables.

Flower's own command runs a `flowerconfig.py` of the working directory, and Celery's puts that
folder in front of the path; so it is started here.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import signal
import sys
from typing import Any

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which -m without -P puts first

from fanout.orchestrator.process_secrets import seal_process

if __name__ == "__main__":
    seal_process()  # before the imports, which take seconds

from flower.app import Flower
from flower.command import apply_env_options, extract_settings, print_banner, setup_logging
from flower.urls import settings as flower_settings
from flower.views.tasks import TASK_COLUMNS
from tornado.options import options

from fanout.workers.celery_app import app
from fanout.workers.startup import load_worker_settings, startup_error
from fanout.workers.supervisor import EXIT_USAGE

COLUMNS_VARIABLE = "FLOWER_TASKS_COLUMNS"
COLUMNS = "state,kwargs,result,uuid,received,runtime,worker"
"""Of the list of tasks, where the variable does not say otherwise. Flower's own list hides what
distinguishes jobs: all have the same task name."""
TITLES = {"kwargs": "Agent and labels", "result": "Step, outcome or reason", "uuid": "Job"}

_REASON = re.compile(r"JobNotSucceeded\((['\"])(?P<line>.*)\1,?\)", re.DOTALL)


def main() -> None:
    """Run Flower until SIGTERM or Ctrl-C.

    Raises:
        SystemExit: The settings are not usable, or Flower has ended.
    """
    settings, _ = load_worker_settings()
    os.environ.setdefault(COLUMNS_VARIABLE, COLUMNS)
    apply_env_options()
    options.parse_command_line([sys.argv[0]])  # sets up its log
    if options.persistent:  # its file contains pickles, which are code: never one of this folder
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        options.db = str(settings.state_dir / options.db)
    TASK_COLUMNS.update(TITLES)
    options.format_task = readable
    extract_settings()
    setup_logging()
    flower = Flower(capp=app, options=options, **flower_settings)
    atexit.register(flower.stop)
    _end_on_signals(flower)
    try:
        port = flower.start_http_server()
    except OSError as error:
        raise startup_error(
            f"Flower cannot listen on {options.address}:{options.port} ({error.strerror}): choose "
            "another port with FANOUT_FLOWER__PORT.",
            EXIT_USAGE,
        ) from None
    print_banner(app, "ssl_options" in flower_settings, port)
    flower.start()


def readable(task: Any) -> Any:
    """Return a task as the pages show it: agent and labels as words, and why it failed.

    Args:
        task: A copy of what Flower has of it; its JSON, `/api/tasks`, stays as it is.
    """
    try:
        labels = json.loads(task.kwargs)
        agent = labels.pop("agent")
        task.kwargs = " · ".join([agent, *(f"{key}={value}" for key, value in labels.items())])
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # another program's task, or labels that were cut
    if isinstance(task.result, str):
        task.result = task.result.strip("'")  # Celery's representation of a text
    if failed := _REASON.fullmatch(str(task.exception or "")):
        task.result = failed["line"]
    return task


def _end_on_signals(flower: Flower) -> None:
    """End its loop on SIGTERM and Ctrl-C, also on one that comes before the loop runs.

    An exception of a signal handler could hit the start of a thread, for which Python's end would
    then wait for ever. In the background SIGINT stays ignored.
    """
    loop: asyncio.AbstractEventLoop = flower.io_loop.asyncio_loop
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, flower.io_loop.stop)


if __name__ == "__main__":
    main()
