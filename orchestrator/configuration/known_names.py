"""The names that definitions and options may use: of built-in tools and of models.

They are listed here because importing the modules of tools and models takes seconds; a test
compares the lists.
"""

from __future__ import annotations

import re

from ..installed_tools import installed_tools
from ..model_names import name_fault
from ..spelling import nearest

BUILT_IN_TOOLS = (
    "apply_patch",
    "compact_conversation",
    "delete_file",
    "edit_file",
    "execute",
    "glob",
    "grep",
    "ls",
    "multi_edit",
    "read_file",
    "read_todos",
    "task",
    "write_file",
    "write_todos",
)
"""The tools of the harness: what an agent has whose definition names no `tools`."""

WEB_TOOLS = ("web_fetch", "web_search")
"""The tools that an agent has only if its definition names them, with an operator's own."""

OTHER_NAMES = {
    "bash": "execute",
    "cat": "read_file",
    "edit": "edit_file",
    "fetch": "web_fetch",
    "find": "glob",
    "read": "read_file",
    "run": "execute",
    "search": "grep",
    "shell": "execute",
    "todo": "write_todos",
    "view": "read_file",
    "write": "write_file",
}
"""Names of tools in other products, and their names here."""

MODEL_FAMILIES = ("gemini", "claude", "gpt", "gemma")
"""The beginnings of models' names, before the first hyphen."""

_OTHER_MODELS = re.compile(r".*[/:].*|o\d.*|model-optimizer-.*|\w+\.[\w.]+-?.*", re.DOTALL)
"""`provider/model`, `scripted:PATH`, `Class:name` and the rest of ADK's registry."""


def existing_tool(name: str) -> str:
    """Return the name of a tool that is built in, of the web, or installed by an operator.

    Raises:
        ValueError: There is none; the text names the nearest.
    """
    if name in BUILT_IN_TOOLS or name in WEB_TOOLS:
        return name
    installed = installed_tools()
    if name in installed:
        return name
    known = (*BUILT_IN_TOOLS, *WEB_TOOLS)
    near = nearest(name, (*known, *installed, *OTHER_NAMES))
    question = f" Did you mean {OTHER_NAMES.get(near, near)}?" if near else ""
    raise ValueError(
        f"there is no built-in tool {name!r}.{question} There are {', '.join(known)}; installed "
        f"packages have {', '.join(installed) or 'none'} (entry points fanout.tools)"
    )


def possible_model(names: str) -> str:
    """Return the name of a model, or several separated by commas, if they can exist.

    Whether its service has it, and whether there is a key, is only known when it is called.

    Raises:
        ValueError: A name is of an unknown kind, or has a form that no name may have; the text has
            the nearest name.
    """
    for name in filter(None, map(str.strip, names.split(","))):
        if fault := name_fault(name):
            raise ValueError(fault.removesuffix("."))
        family, _, rest = name.partition("-")
        if (family in MODEL_FAMILIES and rest) or _OTHER_MODELS.fullmatch(name):
            continue
        near = nearest(family, MODEL_FAMILIES)
        question = f" Did you mean {near}-{rest or '…'}?" if near else ""
        raise ValueError(
            f"there is no model {name!r}.{question} A model is gemini-…, claude-…, gpt-…, "
            "chat/NAME (on a server of your own), ollama/NAME, provider/model or scripted:PATH"
        )
    return names
