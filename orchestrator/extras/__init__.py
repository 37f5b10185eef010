"""What most installations never load, each behind its names here; `__init__.pyi` lists them.

A name is loaded when it is first used. The rest imports only this door, and only where a process is
put together (`server/app.py`, `server/process.py`, the command line); import-linter checks both.

- `a2a/`: the service's door for agents of others: a message is a job, a task is that job, a context
  is a chain of continuations. Types, routes and errors are those of `a2a-sdk`. Begin with
  `handler.py`; `grpc_door.py` needs the extra `grpc`. For those who call it: `docs/a2a.md`.
- `mcp_server/`: jobs as tools of coding agents, over `/mcp` of the service and over stdin and
  stdout (`fanout mcp serve`), which also reaches folders of this machine. Begin with `doors.py`.
- `mcp_clients.py`: the files in which coding agents name their MCP servers, and how an entry gets
  there (`fanout mcp install`).
- `oidc.py`: callers with tokens of an OpenID Connect issuer.
- `remote_agents.py`: connections to agents of other services by A2A, and their bounds.
- `web/`: tools for research on the web, which programs import from `fanout.web` (`docs/web.md`).
- `python_tools/`: an operator's functions as tools, each call in a process (`docs/own-tools.md`).
- `named_tools.py`: both of them, as definitions name them (`docs/web-tools.md`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
