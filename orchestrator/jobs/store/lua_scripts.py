"""The Lua scripts in the folder `scripts`, and how they are run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from redis.asyncio import Redis

from ...valid_text import clean
from .keys import Keys
from .redis_errors import redis_failures

PARTS = ("base", "fleet", "models", "clocks", "common", "endings", "graph", "reopening")
"""What all scripts may use, by file: each part may use those before it."""
_DEFINITION = re.compile(
    r"^local (?:function )?(?P<name>\w+).*\n(?:(?!local |--|\n).*\n)*", re.MULTILINE
)
"""The pattern of a definition, a function or a constant at the beginning of a line, up to the next
comment or empty line at the beginning of one."""
_COMMENT = re.compile(r"--.*")
_WORD = re.compile(r"\w+")


class Scripts:
    """Scripts of one Redis, by name.

    Args:
        redis: The client.
        keys: The key names; their prefix is the first argument of each script.
        names: The scripts.
        shared: Parts that these scripts have in common, besides what all scripts have.
    """

    def __init__(
        self, redis: Redis, keys: Keys, names: Iterable[str], shared: tuple[str, ...] = ()
    ) -> None:
        self._prefix = keys.prefix
        self.registered: dict[str, Any] = {
            name: redis.register_script(script_source(name, shared)) for name in names
        }

    async def run(self, name: str, *arguments: str | float | bytes) -> Any:
        """Run a script and return its answer.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            return await self.registered[name](keys=[], args=[self._prefix, *clean(arguments)])


@cache
def script_source(name: str, shared: tuple[str, ...] = ()) -> str:
    """Return a script, after what it uses of the common parts: all of it runs at each call.

    Args:
        name: The script.
        shared: Parts that it may use, besides those that all scripts may use.
    """
    folder = resources.files("fanout.orchestrator.jobs") / "lua"
    script = (folder / f"{name}.lua").read_text("utf-8")
    definitions = [
        definition
        for part in PARTS + shared
        for definition in _DEFINITION.finditer((folder / f"{part}.lua").read_text("utf-8"))
    ]
    used, needed = _words(script), []
    for definition in reversed(definitions):  # each uses only earlier ones
        if definition["name"] in used:
            used |= _words(definition[0])
            needed.append(definition[0])
    return "\n".join([*reversed(needed), script])


def _words(code: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", code)))


def milliseconds(seconds: float) -> int:
    """Return a time as scripts take it."""
    return round(seconds * 1000)
