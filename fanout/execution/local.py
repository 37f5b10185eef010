"""Commands on this machine: `create_local_execute_tool`, a function `execute` for any ADK agent."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    "fanout", submod_attrs={"orchestrator.deep_agent": ["create_local_execute_tool"]}
)
