# The doors of the extras, each loaded when it is first used.

from .a2a.grpc_door import GrpcUnusable as GrpcUnusable
from .a2a.grpc_door import grpc_door as grpc_door
from .a2a.handler import a2a_routes as a2a_routes
from .a2a.push import push_builders as push_builders
from .mcp_clients import CLIENTS as CLIENTS
from .mcp_clients import InstallScope as InstallScope
from .mcp_clients import LocalServer as LocalServer
from .mcp_clients import McpClient as McpClient
from .mcp_clients import NotMergeable as NotMergeable
from .mcp_clients import PlacedEntry as PlacedEntry
from .mcp_clients import RemoteServer as RemoteServer
from .mcp_server.doors import LocalDoor as LocalDoor
from .mcp_server.doors import LocalFolders as LocalFolders
from .mcp_server.doors import usable_roots as usable_roots
from .mcp_server.handshake import Handshake as Handshake
from .mcp_server.handshake import answer_first_requests as answer_first_requests
from .mcp_server.server import create_server as create_server
from .mcp_server.server import mcp_app as mcp_app
from .mcp_server.stdio import serve_stdio as serve_stdio
from .oidc import token_verifier as token_verifier
from .remote_agents import RemoteConnection as RemoteConnection
from .remote_agents import connect_agent as connect_agent
from .web.fetch import WebFetch as WebFetch
from .web.search import SearchApi as SearchApi
from .web.search import WebSearch as WebSearch
from .web.think import Think as Think
