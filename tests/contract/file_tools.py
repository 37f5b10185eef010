"""Calls file tools on a backend as ADK does."""

from pathlib import Path
from typing import Any

from fanout.orchestrator.deep_agent.backends.protocol import Backend, Shell
from fanout.orchestrator.deep_agent.backends.state import DictState
from fanout.orchestrator.deep_agent.models.facts import EDIT_TOOLS
from fanout.orchestrator.deep_agent.tool import MethodTool
from fanout.orchestrator.deep_agent.tools.execute import ExecuteTool
from fanout.orchestrator.deep_agent.tools.filesystem import FilesystemTools


class Context:
    """As much of ADK's ToolContext as the file tools use."""

    branch = None
    function_call_id = "call"

    def __init__(self) -> None:
        self.state = DictState()

    async def run_node(self, node: Any, **_: Any) -> None:
        """What a command shows while it runs; nobody looks."""
        async for _event in node.events():
            pass


class Tools:
    """Calls tools by name with the model's arguments, on files below `root`."""

    def __init__(
        self, backend: Backend, root: str = "/workspace", *, folder: Path | None = None
    ) -> None:
        """`folder`: where the files are on this machine, if they are."""
        self.backend = backend
        self.root = root
        self.folder = folder
        self.context = Context()
        every = FilesystemTools(lambda _: backend, edit_tools=EDIT_TOOLS)
        self.by_name = {tool.name: tool for tool in every.tools()}

    async def __call__(self, name: str, **args: Any) -> Any:
        return await self.by_name[name].run_async(args=args, tool_context=self.context)

    async def ok(self, name: str, **args: Any) -> Any:
        result = await self(name, **args)
        assert result["status"] == "success", result
        return result

    async def error(self, name: str, **args: Any) -> str:
        result = await self(name, **args)
        assert result["status"] == "error", result
        assert set(result) == {"status", "error"}
        return str(result["error"])

    def at(self, name: str) -> str:
        """A path below the root."""
        return f"{self.root}/{name}"

    async def put(self, path: str, data: bytes | str) -> None:
        """Something other than this agent's file tools writes a file."""
        await self.backend.write_bytes(path, data.encode() if isinstance(data, str) else data)

    async def get(self, path: str) -> bytes:
        return await self.backend.read_bytes(path, 2**30)

    async def found(self, pattern: str, path: str = "/") -> list[str]:
        """Matching paths, below the root."""
        result = await self.ok("glob", pattern=pattern, path=path)
        return [entry["path"].removeprefix(self.root) for entry in result["entries"]]

    def another_agent(self) -> "Tools":
        """The same files, as an agent with a session of its own has them."""
        return Tools(self.backend, self.root, folder=self.folder)

    async def execute(self, **args: Any) -> Any:
        assert isinstance(self.backend, Shell)
        tool = MethodTool(ExecuteTool(lambda _: self.backend).execute)
        return await tool.run_async(args=args, tool_context=self.context)
