"""What most workers never load.

- `remote_agents`: jobs of agents of other services, by A2A (`RemoteAgent`, `AbandonedTasks`). A
  name is loaded when it is first used; `__init__.pyi` lists them.
- Programs, each started by its module's name: `engine_proxy` (the engine's socket for workers in
  containers), `images` (`fanout images`) and `dashboard` (Flower).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
