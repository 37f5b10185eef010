"""One line of the report of `fanout doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One line of the report."""

    status: Status
    """`warn` is something to improve, `fail` something that prevents jobs or is unsafe."""
    name: str
    found: str
    advice: str = ""
    """How to fix or improve it."""
