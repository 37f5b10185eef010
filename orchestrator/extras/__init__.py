"""What most installations never load, each behind its names here; `__init__.pyi` lists them.

- `a2a`: the service's door for agents of others, over HTTP and gRPC (`a2a_routes`, `grpc_door`).
- `mcp_server`: jobs as tools of coding agents (`mcp_app`, `create_server`, `serve_stdio`).
- `oidc`: callers with tokens of an OpenID Connect issuer (`token_verifier`).
- `remote_agents`: connections to agents of other services by A2A (`connect_agent`).
- `web`: tools for research on the public web, which programs import from `fanout.web`.

A name is loaded when it is first used: only composition roots use them, when something is asked of
the extra.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
