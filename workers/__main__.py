"""`python -P -m fanout.workers`: start a worker."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import warnings
from functools import partial
from typing import NoReturn

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which -m without -P puts first

from fanout.orchestrator.process_secrets import seal_process

if __name__ == "__main__":
    seal_process()  # before the imports, which take seconds
    gc.disable()  # a quarter of their time: nothing that they make is garbage

from fanout.orchestrator.configuration.absent_packages import absent

with absent("rich"):  # structlog would load it
    import structlog  # noqa: F401 - for all who import it later

from celery.platforms import SecurityWarning
from kombu.entity import Queue

from fanout.orchestrator.jobs.store.queue import queue_of_pool
from fanout.workers.bootstrap import worker as current_worker
from fanout.workers.celery_app import app, node_name
from fanout.workers.pool import MAX_CONCURRENCY
from fanout.workers.startup import load_worker_settings
from fanout.workers.supervisor import (
    number_of_processes,
    restart_when_hanging,
    run_processes,
    share,
)
from fanout.workers.telemetry import end_telemetry, export_telemetry

# Root is normal in a container, and commands of agents do not run as this process's user.
warnings.filterwarnings("ignore", category=SecurityWarning)


def main() -> None:
    """Start a worker with the settings of the environment and the options of the command line.

    Not by Celery's command line, which imports from the working directory.

    Raises:
        SystemExit: The settings or options are not usable, or the worker has ended.
    """
    options = _options()
    given = {
        "DRAIN": "true" if options.drain else None,
        "CONCURRENCY": options.concurrency,
        "PROCESSES": options.processes,
    }
    for name, value in given.items():  # set in the environment, which all its readers use
        if value is not None:
            os.environ[f"FANOUT_WORKER__{name}"] = str(value)
    settings, _ = load_worker_settings()
    gc.freeze()
    gc.enable()
    processes = number_of_processes(settings.worker.processes, settings.worker.concurrency)
    os.environ["FANOUT_WORKER__PROCESSES"] = str(processes)  # what they share, each takes a part of
    if processes == 1 and not options.supervised:
        if options.restart:
            restart_when_hanging()
        _work(options.queues, options.autoscale)
    if processes == 1:
        run_processes(partial(_work_as_member, options), processes)
    with absent("rich", "grpc"):
        from fanout.workers.execution import load_agent_libraries  # noqa: PLC0415 - for all forks

        load_agent_libraries()
    run_processes(partial(_work_as_member, options), processes)


def be_one_of_several(number: int) -> NoReturn:
    """Be one of a worker's processes, in the environment that `main` has prepared for them.

    Args:
        number: Which of them, from 0.

    Raises:
        SystemExit: The process has ended.
    """
    gc.freeze()
    gc.enable()
    _work_as_member(_options(), number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fanout.workers", description="Run fanout jobs."
    )
    parser.add_argument("--concurrency", type=int, help="number of jobs that run at the same time")
    parser.add_argument("--processes", type=int, help="number of processes that share these jobs")
    parser.add_argument("--autoscale", type=_bounds, help="most and fewest jobs at once: MAX,MIN")
    parser.add_argument("--queues", help="comma-separated names of the queues to serve")
    parser.add_argument(
        "--supervised", action="store_true", help="be started again after a crash, or when it hangs"
    )
    parser.add_argument(
        "--restart", action="store_true", help="when it hangs start again, as the same process"
    )
    parser.add_argument("--drain", action="store_true", help="on SIGTERM, finish running jobs")
    return parser.parse_args()


def _work_as_member(options: argparse.Namespace, number: int) -> NoReturn:
    """Be one of several processes that share the jobs."""
    worker = load_worker_settings()[0].worker
    part = partial(share, processes=worker.processes, number=number)
    os.environ["FANOUT_WORKER__CONCURRENCY"] = str(part(worker.concurrency))
    bounds = options.autoscale
    _work(options.queues, (part(bounds[0]), part(bounds[1])) if bounds else None)


def _work(queues: str | None, autoscale: tuple[int, int] | None) -> NoReturn:
    """Be a worker until it is stopped.

    Args:
        queues: Those to serve; None: that of the settings.
        autoscale: The bounds of the concurrency, if it is to change with the number of jobs.

    Raises:
        SystemExit: The worker has ended.
    """
    settings, _ = load_worker_settings()
    export_telemetry()
    worker = app.Worker(
        hostname=node_name(),
        queues=queues or _queues(settings.worker.queue, settings.worker.pool),
        loglevel=settings.log_level.upper(),
        quiet=True,
        autoscale=autoscale,
        without_gossip=True,  # workers know each other through the ledger
        without_mingle=True,
    )
    own = current_worker().queue
    app.amqp.queues.select_add(Queue(own, routing_key=own, no_declare=True))  # type: ignore[no-untyped-call] # kombu
    worker.start()
    end_telemetry()
    sys.exit(worker.exitcode)


def _queues(queue: str, pool: str) -> str:
    """Return the queues of a worker: the installation's, and that of its pool."""
    return ",".join(dict.fromkeys((queue, queue_of_pool(queue, pool))))


def _bounds(text: str) -> tuple[int, int]:
    """Read the bounds of the concurrency, as Celery writes them."""
    most, _, least = text.partition(",")
    try:
        bounds = int(most), int(least or 1)
    except ValueError:
        bounds = 0, 0
    if not 1 <= bounds[1] <= bounds[0] <= MAX_CONCURRENCY:
        raise argparse.ArgumentTypeError(
            f"two numbers MAX,MIN with 1 <= MIN <= MAX <= {MAX_CONCURRENCY}, for example 10,2"
        )
    return bounds


if __name__ == "__main__":
    main()
