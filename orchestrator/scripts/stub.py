"""What the check of types knows of a script's functions; agents are named in it."""

from __future__ import annotations

import json
from collections.abc import Collection

_STUB = """
from typing import Any, Literal, Sequence

Agent = {agents}
Files = Literal["land", "keep", "discard"]

class AgentFailed(Exception): ...

class Handle:
    id: str
    label: str

class Result:
    id: str
    ok: bool
    state: str
    summary: str
    output: Any
    error: str
    files: list[str]
    verified: bool | None
    cost_usd: float | None
    tokens: int
    seconds: float
    label: str

class Ran:
    ok: bool
    exit_code: int
    output: str

class LandReport:
    ok: bool
    landed: list[str]
    conflicts: list[str]

class Spent:
    used: dict[str, float]
    left: dict[str, float]

inputs: dict[str, Any]

async def agent(
    task: str, *, agent: Agent = ..., context: str = ..., output_schema: dict[str, Any] | None = ...,
    verify: str = ..., model: str = ..., timeout_seconds: float | None = ..., label: str = ...,
    files: Files = ..., check: bool = ...,
) -> Result: ...
def start(
    task: str, *, agent: Agent = ..., context: str = ..., output_schema: dict[str, Any] | None = ...,
    verify: str = ..., model: str = ..., timeout_seconds: float | None = ..., label: str = ...,
    files: Files = ..., check: bool = ...,
) -> Handle: ...
async def best_of(
    count: int, task: str, *, agent: Agent = ..., context: str = ...,
    output_schema: dict[str, Any] | None = ..., verify: str = ..., model: str = ...,
    timeout_seconds: float | None = ..., label: str = ..., judge: str = ..., files: Files = ...,
    check: bool = ...,
) -> Result: ...
async def first(handles: Sequence[Handle]) -> Result: ...
async def land(results: Result | Sequence[Result]) -> LandReport: ...
async def read(path: str) -> str: ...
async def files(pattern: str = ...) -> list[str]: ...
async def run(command: str, timeout_seconds: float | None = ...) -> Ran: ...
async def ask(question: str, options: Sequence[str] | None = ...) -> str: ...
async def budget() -> Spent: ...
def phase(name: str) -> None: ...
def log(text: str) -> None: ...
"""


def stub(agents: Collection[str]) -> str:
    """Return the declarations of all that a script sees.

    Args:
        agents: The names of the agents that it may call.
    """
    names = ", ".join(json.dumps(name) for name in sorted(agents))
    return _STUB.format(agents=f"Literal[{names}]" if names else "str")
