"""Tools for agents that research: arguments of `create_deep_agent(tools=[…])`.

`WebSearch` by the model's own search or a `SearchApi`, `WebFetch`, `Think`. `docs/web.md` is the
guide.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
