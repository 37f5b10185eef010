"""`fanout mcp serve` knows its tools before it imports what calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from fanout.orchestrator.extras.mcp_server.handshake import DECLARED, INITIALIZE, VERSIONS
from tests.unit.server.mcp_declared import (
    METHODS,
    answers_of_the_server,
    introduction,
    without_versions,
)

HEAVY = {"mcp", "mcp_types", "google", "litellm", "celery", "kombu", "redis", "fastapi"}


def test_what_is_answered_at_once_is_what_the_server_would_answer() -> None:
    declared = json.loads(DECLARED.read_text("utf-8"))

    assert declared == without_versions(answers_of_the_server()), "run: make mcp-tools"


def talk(process: subprocess.Popen[str], method: str, parameters: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    asked = {"jsonrpc": "2.0", "id": method, "method": method, "params": parameters}
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    assert answer["id"] == method
    return answer


@pytest.mark.parametrize(
    "version",
    [
        VERSIONS[0],
        *(pytest.param(other, marks=pytest.mark.slow) for other in (*VERSIONS[1:], "1999-01-01")),
    ],
)
def test_a_client_has_the_tools_before_anything_is_imported_for_their_calls(
    version: str, tmp_path: Any
) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-v", "-m", "fanout", "mcp", "serve"],  # -v names each import
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "imports").open("w"),
        text=True,
    ) as process:
        begun = talk(process, INITIALIZE, introduction(version))["result"]
        assert begun["protocolVersion"] == (version if version in VERSIONS else VERSIONS[0])
        assert process.stdin is not None
        process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        listed = {method: talk(process, method, {}) for method in METHODS}
        imported = {
            line.split("'")[1].partition(".")[0]
            for line in (tmp_path / "imports").read_text().splitlines()
            if line.startswith("import '")
        }
        called = talk(process, "tools/call", {"name": "no_such_tool", "arguments": {}})
        process.stdin.close()

    assert {"run", "wait_job", "get_patch"} <= {
        tool["name"] for tool in listed["tools/list"]["result"]["tools"]
    }
    assert "json" in imported
    if version in VERSIONS:
        assert imported & HEAVY == set()
    assert "no_such_tool" in json.dumps(called)
