"""What most workers never load. The rest of `workers` imports only this door, in `execution.py`.

- `coding_agents/`: the job of a coding agent, a program in the sandbox (ACP). Begin with
  `CodingAgentJob.run`; it needs the extra `acp`.
- `remote_agents/`: the job of an agent of another service (A2A). Begin with `RemoteAgent.run`; the
  client and its bounds are in `orchestrator/extras/remote_agents.py`. A name of the door is loaded
  when it is first used; `__init__.pyi` lists them.
- Programs, each started by its module's name: `engine_proxy.py` (the engine's socket for workers in
  containers; `engine_rules.py`: which calls pass), `images.py` with `image_building.py`
  (`fanout images`), `dashboard.py` (Flower).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
