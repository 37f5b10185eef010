"""Names of agents: as ADK requires them, and as a model gives them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AliasChoices, Field

SubagentType = Annotated[str, Field(validation_alias=AliasChoices("subagent_type", "agent_type"))]
"""The sub-agent that does a task; other harnesses call the argument `agent_type`."""


def agent_identifier(name: str) -> str:
    """Return the name as an identifier other than `user`, which ADK reserves."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not identifier or identifier[0].isdigit() or identifier == "user":
        return f"agent_{identifier}"
    return identifier
