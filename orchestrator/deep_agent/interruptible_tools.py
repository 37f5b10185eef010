"""Tools that never hold up a run: a time limit ends the wait for them, whatever they do.

A plain function runs in a thread, so calls run at the same time and the event loop stays free. A
tool that does not end when it is cancelled is left to itself, and the log says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import dis
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, get_type_hints
from weakref import WeakKeyDictionary

from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext

from ..cancellation import is_cancelled
from ..logs import Logger
from .tool import CheckedTool

log = Logger(__name__)

T = TypeVar("T")

MAX_TOOL_THREADS = 64
"""Threads of tools in one event loop; further calls wait for one. Each has a stack of its own, and
a call that was given up keeps its thread until it ends."""

SECONDS_TO_END = 0.1
"""How long a cancelled tool may take to clean up before it is left to itself. The wait is added to
every time limit that a tool does not respect."""

_SUSPENDING = {"GET_AWAITABLE", "GET_AITER", "BEFORE_ASYNC_WITH"}
"""The instructions with which a coroutine can give the event loop back."""

_abandoned: set[asyncio.Task[Any]] = set()
"""Tools that were left to themselves; asyncio itself holds tasks weakly."""

_END = object()
"""What follows a generator's last step."""

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def interruptible(tool: Any) -> Any:
    """Return a tool, given as ADK takes it, that a time limit can end; toolsets stay as they are.

    What is returned for a tool is an instance of a subclass and shares the tool's attributes.
    """
    if isinstance(tool, (BaseToolset, CheckedTool, _Interruptible)):
        return tool  # the harness's own tools end when they are cancelled
    if not isinstance(tool, BaseTool):
        if not inspect.isroutine(tool):
            return tool
        tool = FunctionTool(tool)
    kind: type[BaseTool] = type(tool)
    same = object.__new__(_interruptible_class(kind))
    same.__dict__ = tool.__dict__
    return same


def in_own_loop(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return an async function as a plain one, for a tool that awaits and blocks as well.

    It runs in a thread with an event loop of its own, so it cannot share connections, locks or
    tasks with the caller's loop or with other calls.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> T:
        return asyncio.run(function(*args, **kwargs))

    del run.__wrapped__  # else ADK takes it for an async function
    run.__annotations__ = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    run.__signature__ = signature  # type: ignore[attr-defined] # as PEP 362 says
    return run


class _Interruptible(BaseTool):
    """The methods of a tool that a time limit can end."""

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        work = super().run_async(args=args, tool_context=tool_context)
        return await _ended_by_cancellation(work, self.name)

    def _get_compatible_func(self) -> Callable[..., Any]:
        """Return what a FunctionTool calls: its function, off the event loop."""
        function: Callable[..., Any] = super()._get_compatible_func()  # type: ignore[misc] # FunctionTool's
        if self.__dict__.get("_on_loop") is not function:
            self._on_loop, self._made = function, _off_loop(function)
        return self._made


class _WithOwnRequest(_Interruptible):
    """The methods of such a tool that also changes requests itself."""

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        """Change a request; a tool that fails leaves it as it is then, and costs nothing else."""
        try:
            await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        except Exception as error:  # noqa: BLE001 - of anybody's tool
            kind = type(error).__name__
            log.warning("a tool did not prepare a request", tool=self.name, error=kind)


@functools.lru_cache(maxsize=256)
def _interruptible_class(tool_class: type[BaseTool]) -> type[BaseTool]:
    is_plain = tool_class.process_llm_request is BaseTool.process_llm_request
    methods = _Interruptible if is_plain else _WithOwnRequest
    return type(tool_class.__name__, (methods, tool_class), {})


def _off_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same signature whose blocking parts run in threads.

    An async function that can suspend itself stays on the event loop.
    """
    if inspect.isgeneratorfunction(function):
        return _stepped(function, lambda steps: _called_in_thread(partial(next, steps, _END)))
    if inspect.isasyncgenfunction(function):
        return _stepped(function, _next_step if _suspends(function) else _next_step_in_thread)
    if not inspect.iscoroutinefunction(function):
        return _in_thread(function)
    return function if _suspends(function) else _in_thread(_as_plain(function))


def _suspends(function: Callable[..., Any]) -> bool:
    """Return whether an async function may give the event loop back, or uses it otherwise."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or "asyncio" in code.co_names:
        return True
    return any(step.opname in _SUSPENDING for step in dis.get_instructions(code))


def _as_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async function that never suspends itself as a plain one."""

    @functools.wraps(function)
    def run(**arguments: Any) -> Any:
        return _run_to_end(function(**arguments))

    return run


def _run_to_end(work: Any) -> Any:
    try:
        work.__await__().send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("An async tool without an await suspended itself.")


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function as an async one, which calls it in a thread."""

    @functools.wraps(function)
    async def run(**arguments: Any) -> Any:
        result = await _called_in_thread(partial(function, **arguments))
        return await result if inspect.isawaitable(result) else result

    return run


def _stepped(
    function: Callable[..., Any], next_step: Callable[[Any], Coroutine[Any, Any, Any]]
) -> Callable[..., AsyncGenerator[Any]]:
    """Return a generator function as an async one whose cancellation always ends it.

    Args:
        function: The generator function.
        next_step: Takes a generator's next step.
    """
    name = getattr(function, "__name__", "a generator")

    @functools.wraps(function)
    async def run(**arguments: Any) -> AsyncGenerator[Any]:
        steps = function(**arguments)
        while (step := await _ended_by_cancellation(next_step(steps), name)) is not _END:
            yield step

    return run


async def _next_step(steps: AsyncGenerator[Any]) -> Any:
    return await anext(steps, _END)


async def _next_step_in_thread(steps: AsyncGenerator[Any]) -> Any:
    return await _called_in_thread(lambda: _run_to_end(_next_step(steps)))


async def _called_in_thread(work: Callable[[], Any]) -> Any:
    """Call a function in a thread, with the caller's context variables.

    The thread ends with the process; one that nobody waits for any more still has its slot.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    slots = _slots.setdefault(loop, asyncio.Semaphore(MAX_TOOL_THREADS))
    await slots.acquire()
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def call() -> None:
        try:
            outcome.set_result(context.run(work))
        except (StopIteration, KeyboardInterrupt) as error:
            # No future takes the first; the second is no person's: theirs reaches the main thread.
            outcome.set_exception(RuntimeError(f"The tool raised {error!r}."))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            outcome.set_exception(error)
        finally:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(slots.release)

    threading.Thread(target=call, name="tool", daemon=True).start()
    return await asyncio.wrap_future(outcome)


async def _ended_by_cancellation(work: Coroutine[Any, Any, T], tool: str) -> T:
    """Await a tool's call; one that continues when it is cancelled is left to itself.

    Raises:
        RuntimeError: The tool's own work was cancelled, and nobody has cancelled the call.
    """
    call = asyncio.create_task(_without_exit(work))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError as error:
        if call.done() and not is_cancelled():
            raise RuntimeError("The tool's own work was cancelled.") from error
        if not call.done():
            call.cancel()
            _abandoned.add(call)
            call.add_done_callback(_forget)
            await asyncio.wait([call], timeout=SECONDS_TO_END)
            if not call.done():
                log.warning("a tool continues after it was cancelled", tool=tool)
        raise


async def _without_exit(work: Coroutine[Any, Any, T]) -> T:
    """Await a tool's call; whatever it raises to end more than itself is an error of the tool.

    In a task, SystemExit ends the event loop and everything that runs in it, and ADK knows no
    error but an Exception.
    """
    try:
        return await work
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"The tool raised {error!r}.") from error


def _forget(call: asyncio.Task[Any]) -> None:
    """Let go of a call that has ended, and of what it raised: nobody waits for it."""
    _abandoned.discard(call)
    if not call.cancelled():
        call.exception()
