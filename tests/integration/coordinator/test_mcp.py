"""MCP servers of a coordinator, through `fanout run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_module
from tests.integration.scripts import call, calls, conversation, says
from tests.mcp_servers import HttpServer, http_server, url_of
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

KEY = "canary-mcp-key-8812"
SCRIPT = conversation("add", calls(call("calc__add", a=20, b=22)), says("It is {{last_result}}"))
DEFINITION = "name: {name}\ndescription: Adds.\ninstruction: Do it.\nmcp_servers:\n- {server}\n"
REMOTE = "{{name: calc, url: '{url}', headers: {{authorization: 'Bearer ${{CALC_KEY}}'}}}}"


@pytest.fixture(scope="module")
def http() -> Iterator[HttpServer]:
    with http_server(wanted=("authorization", f"Bearer {KEY}")) as server:
        yield server


@pytest.fixture(scope="module")
def place(install_for_module: Installer, http: HttpServer) -> Installation:
    urls = {"remote": url_of(http), "gone": "http://127.0.0.1:9/mcp"}
    agents = {
        name: DEFINITION.format(name=name, server=REMOTE.format(url=url))
        for name, url in urls.items()
    }
    return install_for_module(SCRIPT, agents=agents, workers=1, CALC_KEY=KEY, NO_PROXY="127.0.0.1")


def coordinate(place: Installation, folder: Path, agent: str) -> Any:
    """What `fanout run` tells."""
    options = ("--workspace", str(folder), "--agent", agent, "--yes", "--json")
    done = run_module("fanout", "run", "add", *options, environment=place.environment, timeout=100)
    assert done.stdout, done.stderr
    assert KEY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_a_coordinator_has_the_tools_of_servers_at_a_url(
    place: Installation, tmp_path: Path
) -> None:
    outcome = coordinate(place, tmp_path, "remote")

    assert outcome["success"], outcome["error"]
    assert "42" in outcome["text"]


@pytest.mark.slow
def test_a_coordinator_whose_server_is_gone_ends_in_words(
    place: Installation, tmp_path: Path
) -> None:
    assert coordinate(place, tmp_path, "gone")["error"] == {
        "type": "McpServerUnavailable",
        "message": "mcp server calc did not start: it cannot be reached (All connection attempts failed).",
        "retryable": True,
    }
