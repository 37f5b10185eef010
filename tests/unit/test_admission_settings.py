"""Where the limits across workers are set.

The settings of tenants, and a key of an agent's definition.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.jobs.policy import AdmissionPolicy, TenantShare

DEFINITION = "name: linter\ndescription: Lints.\ninstruction: Lint.\n"


def test_tenants_are_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANOUT_TENANTS", '{"team-a": {"weight": 3, "jobs": 20}, "team-b": {}}')

    assert load_settings().tenants == {
        "team-a": TenantShare(weight=3, jobs=20),
        "team-b": TenantShare(),
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('{"team-a": {"weight": 0}}', "FANOUT_TENANTS__TEAM-A__WEIGHT is 0, which is not allowed"),
        ('{"team-a": {"job": 1}}', "Did you mean FANOUT_TENANTS__TEAM-A__JOBS"),
        ("{", "FANOUT_TENANTS|tenants"),
    ],
)
def test_a_wrong_one_is_named(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANOUT_TENANTS", value)

    with pytest.raises(InvalidSetting, match=words):
        load_settings()


def test_an_agent_says_how_many_jobs_of_it_run_at_once(tmp_path: Path) -> None:
    path = tmp_path / "linter.yaml"
    path.write_text(DEFINITION + "max_running: 4\n")
    assert load_agent_definition(path).max_running == 4
    path.write_text(DEFINITION + "max_running: 0\n")

    with pytest.raises(InvalidAgentDefinition, match=r"linter.yaml:4: max_running"):
        load_agent_definition(path)


def test_a_tenant_without_a_number_of_its_own_has_that_of_all() -> None:
    policy = AdmissionPolicy(
        tenant_jobs=5, tenants={"a": TenantShare(weight=2), "b": TenantShare(jobs=9)}
    )

    assert [policy.tenant_limit(tenant) for tenant in "abc"] == [5, 9, 5]
    assert AdmissionPolicy().tenant_limit("a") is None
