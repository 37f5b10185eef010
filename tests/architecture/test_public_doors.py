import importlib
import subprocess
import sys

import pytest

from tests.architecture.sources import REPOSITORY

JOBS = {"JobClient", "JobFailure", "JobRecord", "JobResult", "JobSpec", "JobState", "Limits"}
AGENTS = {
    *("JobAgent", "TaskToolset", "create_deep_agent", "create_deep_agent_async"),
    *("create_deep_app", "SubAgentSpec", "SubAgentLimits", "SummarizationConfig", "Middleware"),
    *("McpServer", "McpTools"),
}
BACKENDS = {
    *("StateBackend", "ArtifactBackend", "StoreBackend"),
    *("FilesystemBackend", "DirectoryBackend", "LocalShellBackend"),
    *("CompositeBackend", "OverlayBackend", "ReadOnlyBackend", "BackendEnvironment"),
    *("Backend", "BackendFactory", "Shell", "Entry", "Walk", "Hit", "Hits", "Execution"),
}
DEEP_AGENT = {
    *("create_deep_agent", "create_deep_agent_async", "create_deep_app"),
    *("SubAgentSpec", "SubAgentLimits", "DelegationStyle", "TaskRecord"),
    *("ExecutionChoice", "ExecutionServer", "create_local_execute_tool"),
    *("Backend", "Shell", "Entry", "Walk", "Hit", "Hits", "Execution"),
    *("StateBackend", "DirectoryBackend", "FilesystemBackend"),
    *("LocalShellBackend", "CompositeBackend"),
    *("OverlayBackend", "ReadOnlyBackend", "BackendEnvironment"),
    *("resolve_model", "preload_client", "ResilientModel", "RetryPolicy", "ModelUsage", "price"),
    *("ScriptedModel", "Script"),
    *("Budget", "BudgetLimits", "BudgetFactory", "Account", "Accounts"),
    *("SummarizationConfig", "OutputSchema"),
    "PendingApproval",
    *("pending_approvals", "answers_message"),
    *("McpServer", "McpTools"),
    *("ModelFailed", "McpServerFailed", "ModelNotConfigured", "ToolMistake"),
    *("MethodTool", "ProgressTool", "Middleware"),
}
DOORS = {
    "fanout": JOBS | AGENTS,
    "fanout.backends": BACKENDS,
    "fanout.execution.local": {"create_local_execute_tool"},
    "fanout.web": {"SearchApi", "Think", "WebFetch", "WebSearch"},
    "fanout.orchestrator": JOBS | AGENTS,
    "fanout.orchestrator.deep_agent": DEEP_AGENT,
}


@pytest.mark.parametrize(("door", "documented"), DOORS.items(), ids=DOORS)
def test_the_documented_names_are_public(door, documented):
    module = importlib.import_module(door)

    assert documented - set(module.__all__) == set()
    assert [name for name in documented if f"`{name}`" not in (module.__doc__ or "")] == []


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_can_be_imported(door):
    module = importlib.import_module(door)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018 - reading it is what fails


@pytest.mark.parametrize("door", DOORS)
def test_importing_a_door_does_not_import_adk(door):
    program = f"import sys, {door}; sys.exit('google.adk' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False)

    assert done.returncode == 0


@pytest.mark.parametrize("name", ["create_deep_agent", "StateBackend", "create_local_execute_tool"])
def test_a_name_is_one_object_behind_every_door(name):
    doors = [importlib.import_module(door) for door, names in DOORS.items() if name in names]

    assert len({getattr(door, name) for door in doors}) == 1
    assert len(doors) > 1
