"""Tools that installed packages offer: Python functions by the entry points `fanout.tools`.

Nothing of them is imported here: that is for the processes in which they run.
"""

from __future__ import annotations

from importlib.metadata import entry_points

GROUP = "fanout.tools"
"""The group of entry points: `jira_lookup = "acme_tools:jira_lookup"`."""


def installed_tools() -> dict[str, str]:
    """Return `module:function` of each tool by its name; of a name that is there twice, both."""
    found: dict[str, list[str]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point.value)
    return {name: " and ".join(sorted(set(found[name]))) for name in sorted(found)}
