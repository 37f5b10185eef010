"""The checks of `fanout doctor` on tools that definitions name besides the built-in ones."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable

from ... import extras
from ...configuration.agent_definitions import AgentDefinition, AgentDefinitions
from ...configuration.known_names import BUILT_IN_TOOLS, WEB_TOOLS
from ...configuration.settings import Settings
from ...installed_tools import installed_tools
from .check import Check

SET_SEARCH = (
    "Set FANOUT_WEB__SEARCH and FANOUT_WEB__SEARCH_URL (SearXNG) or FANOUT_WEB__SEARCH_KEY (Brave) "
    "for the workers, or take a model with a search of its own."
)
OPEN_WEB = "Correct FANOUT_WEB__HOSTS for the workers, if agents are to use the web."
CORRECT_PACKAGE = "Correct or remove the package."


async def tool_checks(settings: Settings, definitions: AgentDefinitions) -> AsyncIterator[Check]:
    """Yield whether agents have the tools of the web, and installed tools can be used."""
    maker = extras.ToolMaker(settings.web, settings.tools)
    for check in _web_tools(maker, settings, definitions.values()):
        yield check
    async for check in _installed(maker, settings):
        yield check


def _web_tools(
    maker: extras.ToolMaker, settings: Settings, definitions: Iterable[AgentDefinition]
) -> Iterable[Check]:
    """Check each web tool once for each reason why an agent does not have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for definition in definitions:
        for name in definition.named_tools:
            if name in WEB_TOOLS:
                why = maker.absence(name, definition.model or settings.model)
                found.setdefault((name, why), []).append(definition.name)
    for (name, why), agents in sorted(found.items()):
        users = ", ".join(agents)
        if not why:
            yield Check("ok", name, f"for {users}")
        else:
            advice = OPEN_WEB if settings.web.hosts == "none" else SET_SEARCH
            yield Check("warn", name, f"{users} has none: {why}", advice)


async def _installed(maker: extras.ToolMaker, settings: Settings) -> AsyncIterator[Check]:
    installed = installed_tools()
    for name, value in installed.items():
        check = f"tool {name}"
        if name in BUILT_IN_TOOLS or name in WEB_TOOLS:
            found = f"{value} has the name of a tool of fanout, which is used in its place"
            yield Check("warn", check, found, CORRECT_PACKAGE)
        elif fault := await maker.fault(name):
            yield Check("warn", check, fault, CORRECT_PACKAGE)
        else:
            yield Check("ok", check, value)
    for name, tool in settings.tools.items():
        if name not in installed:
            found = f"FANOUT_TOOLS names {name}, and no installed package has such a tool"
            yield Check("warn", f"tool {name}", found, "Install its package, or remove the entry.")
        for variable in tool.env:
            if variable not in os.environ:
                found = f"it gets {variable}, which is not set here"
                yield Check("warn", f"tool {name}", found, "Set it for the workers.")
