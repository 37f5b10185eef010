"""`make mcp-tools`: writes what `fanout mcp serve` answers before its server is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from fanout.orchestrator.extras.mcp_server.handshake import DECLARED, INITIALIZE, VERSIONS

METHODS = (
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "prompts/list",
    "ping",
)
SERVER = """
import anyio
from pathlib import Path
from fanout.orchestrator.extras.mcp_server.doors import LocalDoor
from fanout.orchestrator.extras.mcp_server.handshake import Handshake
from fanout.orchestrator.extras.mcp_server.server import create_server
from fanout.orchestrator.extras.mcp_server.stdio import serve_stdio
anyio.run(serve_stdio, create_server(LocalDoor(None, None)), Handshake())
"""


def introduction(version: str) -> dict[str, Any]:
    client = {"name": "test", "version": "1"}
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": client}


def answers_of_the_server(version: str = VERSIONS[0]) -> dict[str, Any]:
    """Ask the server itself, and return the result of each method."""
    asked = [(INITIALIZE, introduction(version)), *((method, {}) for method in METHODS)]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})
        for number, (method, parameters) in enumerate(asked)
    ]
    lines.insert(1, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in asked]
        process.stdin.close()
    by_id = {answer["id"]: answer for answer in answers}
    return {
        method: by_id[number]["result"]
        for number, (method, _) in enumerate(asked)
        if "result" in by_id[number]
    }


def without_versions(declared: dict[str, Any]) -> dict[str, Any]:
    """Leave out what depends on the release and on the client."""
    given = dict(declared[INITIALIZE])
    del given["protocolVersion"]
    given["serverInfo"] = {**given["serverInfo"], "version": ""}
    return {**declared, INITIALIZE: given}


if __name__ == "__main__":
    text = json.dumps(without_versions(answers_of_the_server()), indent=1, ensure_ascii=False)
    DECLARED.write_text(text + "\n", encoding="utf-8")
