"""Every backend with a shell as ADK's environment, through ADK's own tools."""

import pytest
from google.adk.tools.environment import EnvironmentToolset

from fanout.orchestrator.deep_agent.backends import environment as environment_module
from fanout.orchestrator.deep_agent.backends.environment import BackendEnvironment
from tests.contract.file_tools import Tools
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]"),
]


def environment_of(shell: Tools) -> BackendEnvironment:
    return BackendEnvironment(shell.backend)


async def test_adks_own_tools_work_on_it(shell: Tools) -> None:
    replies = [
        {"calls": [call("WriteFile", path="d/a.txt", content="one\ntwo\n")]},
        {"calls": [call("EditFile", path="d/a.txt", old_string="two", new_string="2")]},
        {"calls": [call("ReadFile", path=shell.at("d/a.txt"))]},
        {"calls": [call("Execute", command="pwd; cat d/a.txt; exit 3")]},
        {"calls": [call("ReadFile", path="../outside")]},
        {"text": "done"},
    ]
    toolset = EnvironmentToolset(environment=environment_of(shell))
    run = await Run(scripted(replies), tools=[toolset]).to_end()
    wrote, edited, read, executed, outside = run.results
    assert (wrote["status"], edited["status"]) == ("ok", "ok")
    assert read["content"] == "     1\tone\n     2\t2\n"
    assert executed["stdout"] == f"{shell.root}\none\n2\n"
    assert (executed["status"], executed["exit_code"]) == ("error", 3)
    assert outside["status"] == "error"
    assert "traversal" in outside["error"]


async def test_times_limits_and_missing_files_are_adks(
    shell: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of(shell)
    assert str(environment.working_dir) == shell.root
    assert (await environment.execute("sleep 30", timeout=0.3)).timed_out
    monkeypatch.setattr(environment_module, "MAX_COMMAND_SECONDS", 0.3)
    assert (await environment.execute("sleep 30")).timed_out
    with pytest.raises(FileNotFoundError):
        await environment.read_file("none")
    monkeypatch.setattr(environment_module, "MAX_FILE_BYTES", 3)
    await environment.write_file("four", b"1234")
    with pytest.raises(OSError, match="larger"):
        await environment.read_file("four")
