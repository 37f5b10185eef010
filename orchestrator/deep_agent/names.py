"""Names of agents as ADK requires them."""

from __future__ import annotations

import re


def agent_identifier(name: str) -> str:
    """Return the name as an identifier other than `user`, which ADK reserves."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not identifier or identifier[0].isdigit() or identifier == "user":
        return f"agent_{identifier}"
    return identifier
