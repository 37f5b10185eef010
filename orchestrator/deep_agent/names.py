"""Names of agents as ADK wants them."""

from __future__ import annotations

import re


def agent_identifier(name: str) -> str:
    """An identifier, and not `user`."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not identifier or identifier[0].isdigit() or identifier == "user":
        return f"agent_{identifier}"
    return identifier
