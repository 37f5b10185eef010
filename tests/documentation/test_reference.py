"""The pages that are made from the code, and the whole documentation as Sphinx builds it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import BaseModel

from docs.generate import command_line, pages
from docs.generate.models import attribute_docs, rows
from fanout.orchestrator.cli.app import COMMANDS, IMAGE_COMMANDS, KEY_COMMANDS
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import EventType
from tests.architecture.sources import REPOSITORY


def test_the_reference_has_every_command():
    text = command_line.page()

    images = [f"images {one}" for one in IMAGE_COMMANDS]
    for name in [*COMMANDS, *images, *(f"keys {one}" for one in KEY_COMMANDS)]:
        assert f"\n## {name}\n" in text


def test_the_reference_has_every_setting_field_key_and_event():
    settings, agents, jobs, events = (
        pages.settings_page(),
        pages.agent_page(),
        pages.jobs_page(),
        pages.events_page(),
    )

    for name, field in Settings.model_fields.items():
        sections = getattr(type(field.default), "model_fields", None)
        for one in sections or [None]:
            assert f"`FANOUT_{name.upper()}{f'__{one.upper()}' if one else ''}`" in settings
    assert [key for key in AgentDefinition.model_fields if f"| `{key}` |" not in agents] == []
    for model in (JobSpec, JobRecord, JobResult):
        assert [key for key in model.model_fields if f"| `{key}` |" not in jobs] == []
    assert [one for one in EventType if f"| `{one}` |" not in events] == []


def test_every_event_says_what_it_means_and_what_data_it_has():
    meanings = attribute_docs(EventType)

    assert [one.value for one in EventType if one.name not in meanings] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_documentation_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="`make setup` installs the group docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]

    done = subprocess.run(
        [*command, "-d", str(tmp_path / "cache"), "docs", str(tmp_path / "html")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "fanout demo" in (tmp_path / "html/reference/command-line.html").read_text()


@pytest.mark.parametrize("model", [AgentDefinition, JobSpec, JobResult, Limits], ids=str)
def test_every_key_of_an_agent_and_field_of_a_job_says_what_it_means(model):
    obvious = {"model_calls", "job_id"}

    assert [row.name for row in rows(model) if not row.meaning and row.name not in obvious] == []


def test_every_setting_says_what_it_means():
    sections = [
        type(field.default)
        for field in Settings.model_fields.values()
        if isinstance(field.default, BaseModel)
    ]
    names = {section: set(section.model_fields) for section in sections}
    names[Settings] = {
        name
        for name, field in Settings.model_fields.items()
        if not isinstance(field.default, BaseModel)
    }

    for model, wanted in names.items():
        without = [row.name for row in rows(model) if not row.meaning and row.name in wanted]
        assert without == [], model.__name__
