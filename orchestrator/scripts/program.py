"""A script as it is given: its size, its `main`, and the interpreter that runs it.

The interpreter (pydantic-monty) knows a part of Python, and runs in a process of its own without
files, network, clock or imports of this one. All that could differ between two runs of a script is
fixed here, because a script that was interrupted is run again from its beginning.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from .stub import stub

if TYPE_CHECKING:
    from pydantic_monty import MontySession

MAX_SCRIPT_BYTES = 64 * 1024
"""The largest script, in UTF-8: some 1,500 lines."""
TURN_SECONDS = 10
"""How long a script may compute between two calls."""
MEMORY_BYTES = 256 * 1024**2
"""The memory of its values: the results of 10,000 agents."""
SUSPENSIONS = 200_000
"""Calls, names and results: twenty for each of the most agents."""
REQUEST_SECONDS = 30.0
"""When an interpreter that does not answer is ended."""
FROZEN = datetime(2026, 1, 1, tzinfo=UTC)
"""The time that a script sees: always the same, so that it makes the same calls when it is run
again."""
PRELUDE = "from binascii import Incomplete as AgentFailed"
"""Binds `AgentFailed`: the interpreter has no inheritance, so it is a built-in exception that no
script needs, and that has no ancestor but `Exception`."""
AGENT_FAILED = "binascii.Incomplete"
FILE_NAME = "script.py"


class InvalidScript(Exception):
    """The script cannot be run; the text says why, with the line where there is one."""


def interpreter_version() -> str:
    """Return the version of the interpreter, which a job's journal names."""
    return version("pydantic-monty")


def digest_of(source: str) -> str:
    """Return the SHA-256 of a script, which is the id of its blob."""
    return hashlib.sha256(source.encode()).hexdigest()


def checked_source(source: str) -> str:
    """Return the script as it is stored.

    Raises:
        InvalidScript: It is empty or too large.
    """
    if not source.strip():
        raise InvalidScript("The script is empty.")
    if "\0" in source or (size := len(source.encode("utf-8", "replace"))) > MAX_SCRIPT_BYTES:
        if "\0" in source:
            raise InvalidScript("The script has a NUL character.")
        raise InvalidScript(
            f"A script has {MAX_SCRIPT_BYTES // 1024} KiB at the most, and this one has "
            f"{size:,} bytes: put data into files of the workspace or into inputs."
        )
    return source


def with_main(source: str) -> str:
    """Return the script, with a call of `main` at its end if it defines it and does not call it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source  # the interpreter says where
    mains = [
        one
        for one in tree.body
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name == "main"
    ]
    others = (one for one in tree.body if not isinstance(one, (ast.FunctionDef, ast.ClassDef)))
    if not mains or any(_calls_main(one) for one in others if one not in mains):
        return source
    awaits = "await " if isinstance(mains[-1], ast.AsyncFunctionDef) else ""
    return f"{source.rstrip()}\n\n{awaits}main()\n"


def _calls_main(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.AsyncFunctionDef):
        return False
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "main"
        for one in ast.walk(statement)
    )


def title_of(source: str) -> str:
    """Return the first line of a script's docstring or comment; empty if it has neither."""
    first = source.strip().splitlines()[0].strip() if source.strip() else ""
    try:
        text = ast.get_docstring(ast.parse(source)) or ""
    except (SyntaxError, ValueError, RecursionError):
        text = ""
    if not text and first.startswith("#") and not first.startswith("#!"):
        text = first.lstrip("# ")
    return text.splitlines()[0].strip() if text else ""


class Interpreter:
    """An interpreter for one run of a script, in a process of its own.

    It is asked from one thread: its client for asyncio ends the whole program now and then when
    that ends.

    Args:
        agents: The agents that the script may name, for the check of its types; None: it was
            checked before.
        seed: The beginning of its random numbers.
    """

    def __init__(self, agents: Collection[str] | None, seed: str) -> None:
        self._agents = agents
        self._seed = seed
        self._thread = ThreadPoolExecutor(1, "script")
        self._opened = contextlib.ExitStack()
        self._process: int | None = None
        self._works = False

    async def __aenter__(self) -> MontySession:
        """Start it."""
        return cast("MontySession", await self.ask(self._open))

    async def __aexit__(self, *raised: object) -> None:
        """End it, and its process also if it computes at this moment."""
        if self._works and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
        self._thread.submit(self._opened.close)
        self._thread.shutdown(wait=False)

    async def ask(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have a step done in its thread, and return what it returns."""
        self._works = True
        found = await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(self._try, step, *args, **options)
        )
        self._works = False
        if isinstance(found, _Raised):
            raise found.error
        return found

    def _try(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return step(*args, **options)
        except Exception as error:  # noqa: BLE001 - raised again by `ask`, once it is known
            return _Raised(error)

    def _open(self) -> MontySession:
        from pydantic_monty import Monty  # noqa: PLC0415 - only who runs a script loads it

        # One process each: a pool's further checkouts would wait for ever.
        pool = self._opened.enter_context(
            Monty(min_processes=1, max_processes=1, request_timeout=REQUEST_SECONDS)
        )
        session = self._opened.enter_context(
            pool.checkout(
                script_name=FILE_NAME,
                limits={
                    "max_memory": MEMORY_BYTES,
                    "max_turn_duration_secs": TURN_SECONDS,
                    "max_suspensions": SUSPENSIONS,
                },
                type_check=self._agents is not None,
                type_check_stubs=None if self._agents is None else stub(self._agents),
                type_check_format="concise",
                os_policy={
                    "datetime": FROZEN,
                    "timezone": "utc",
                    "sleep": "zero",
                    "process_time": "zero",
                    "random_start": {"seed": self._seed},
                },
            )
        )
        session.feed_run(PRELUDE, skip_type_check=True)
        self._process = session.worker_pid
        return session


@dataclass(frozen=True)
class _Raised:
    error: Exception


def as_interpreted(value: Any) -> Any:
    """Return a value in the form in which the interpreter takes it."""
    from pydantic_monty import ClassInstance  # noqa: PLC0415 - only who runs a script loads it

    if is_dataclass(value) and not isinstance(value, type):
        return ClassInstance(value, eager_attrs="all")
    return value
