"""`python -P -m fanout.workers.extras.dashboard`: Flower, with the options of its FLOWER_… names.

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
from html import escape
from pathlib import Path
from typing import Any

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which -m without -P puts first

from fanout.orchestrator.process_secrets import seal_process

if __name__ == "__main__":
    seal_process()  # before the imports, which take seconds

from celery.states import PRECEDENCE_LOOKUP, REVOKED, STARTED
from flower.app import Flower
from flower.command import apply_env_options, extract_settings, print_banner, setup_logging
from flower.urls import settings as flower_settings
from flower.views.tasks import TASK_COLUMNS
from tornado.options import options
from tornado.template import Loader, Template

from fanout.orchestrator.configuration.api_settings import ApiSettings
from fanout.orchestrator.valid_text import printable

from ..celery_app import app
from ..startup import load_worker_settings, startup_error
from ..supervisor import EXIT_USAGE

COLUMNS_VARIABLE = "FLOWER_TASKS_COLUMNS"
COLUMNS = "state,kwargs,result,uuid,received,runtime,worker"
"""The columns of the list of tasks, unless the variable names others. Flower's own list hides what
distinguishes jobs: all have the same task name."""
TITLES = {"kwargs": "Agent and labels", "result": "Step, outcome or reason", "uuid": "Job"}
STATES = ("REJECTED", "PROGRESS", "WAITING")
"""The states that events of ours make, as they follow on STARTED. Without a place in Celery's order
(`celery.states`) they would hide a cancellation, and a rejected message would seem to run."""
STYLE = """<style>
  .tasks-table td.overflow-auto, .tasks-table .worker-name-link, .tasks-table .task-uuid-full {
    white-space: normal !important; overflow-wrap: anywhere; min-width: 10rem }
  .tasks-table .worker-name-link, .tasks-table .task-uuid-full { display: inline-block }
</style>"""
"""Flower keeps agents, labels, outcomes, ids and names of hosts on one line, however long: the row
would not fit a window of 1,400 pixels."""
LINK = """<li class="nav-item"><a class="nav-link" href="{url}"
  title="Jobs that wait for a slot are in no queue of Celery's: the ledger sends them in their turn"
  >Waiting jobs</a></li>"""

EVERY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
"""The addresses of a service that listens on all of them: its page is also on this machine's own.
"""

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
    _order_states()
    options.format_task = readable
    extract_settings()
    setup_logging()
    pages = Pages(flower_settings["template_path"], service_url(settings.api))
    flower = Flower(capp=app, options=options, template_loader=pages, **flower_settings)
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


def _order_states() -> None:
    """Have late and repeated events change no later state; STARTED is just before REVOKED."""
    step = (PRECEDENCE_LOOKUP[STARTED] - PRECEDENCE_LOOKUP[REVOKED]) / (len(STATES) + 1)
    for number, state in enumerate(STATES, 1):
        PRECEDENCE_LOOKUP[state] = PRECEDENCE_LOOKUP[STARTED] - number * step


def service_url(api: ApiSettings) -> str:
    """Return where the service's page is, which has the jobs that wait."""
    host = "127.0.0.1" if api.host in EVERY_ADDRESS else api.host
    return str(api.public_url or f"http://{host}:{api.port}").rstrip("/")


class Pages(Loader):
    """Flower's templates, with wrapping rows and a link to the jobs that wait.

    Args:
        folder: The folder of the templates.
        service: The address of the service.
    """

    def __init__(self, folder: str, service: str) -> None:
        super().__init__(folder)
        url = escape(f"{service}/?state=queued&all=1", quote=True)
        self._additions = {
            "base.html": ("</head>", STYLE),
            "navbar.html": ("</ul>", LINK.format(url=url)),
        }

    def _create_template(self, name: str) -> Template:
        before, addition = self._additions.get(name, ("", ""))
        text = (Path(self.root) / name).read_text(encoding="utf-8")
        if before:  # the first one: that of the pages
            text = text.replace(before, f"{addition}\n{before}", 1)
        return Template(text, name=name, loader=self)


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
    if task.state == "REJECTED":
        task.result = f"not run: {task.result or 'the job had ended'}"
    task.kwargs, task.result = (
        printable(text) if isinstance(text, str) else text for text in (task.kwargs, task.result)
    )
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
