"""Writes `docs/reference/` from the code; `docs/conf.py` calls it at the start of each build."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from docs.generate import command_line
from docs.generate.markdown import code, prose, table
from docs.generate.models import attribute_docs, fields_table
from fanout.orchestrator.cli.checks.limits import Limit, LimitSource, written
from fanout.orchestrator.configuration.agent_definitions import INNER_MODELS, AgentDefinition
from fanout.orchestrator.configuration.settings import PREFIX, Settings
from fanout.orchestrator.jobs.changes import FileChange
from fanout.orchestrator.jobs.result import (
    ContextStats,
    JobError,
    JobResult,
    Usage,
    Verification,
)
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent


def write(folder: Path) -> list[Path]:
    """Write all pages; those whose text is the same keep their time, so that a build is short."""
    folder.mkdir(exist_ok=True)
    made = {
        "command-line": command_line.page,
        "settings": settings_page,
        "limits": limits_page,
        "agent-definition": agent_page,
        "jobs": jobs_page,
        "events": events_page,
    }
    paths = []
    for name, page in made.items():
        path, text = folder / f"{name}.md", page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def settings_page() -> str:
    """Return the page of all settings."""
    parts = [SETTINGS]
    plain = []
    sections = []
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            sections.append((name, type(field.default)))
        else:
            plain.append(name)
    parts.append("\n## General\n\n" + fields_table(Settings, plain, prefix=PREFIX))
    for name, model in sections:
        prefix = f"{PREFIX}{name.upper()}__"
        title = f"\n## {code(prefix + '…')}\n\n{_first_paragraph(model)}\n\n"
        parts.append(title + fields_table(model, prefix=prefix))
    return "".join(parts)


def limits_page() -> str:
    """Return the page of the limits that are not settings."""
    constants = LimitSource().constants()
    return LIMITS + table(("limit", "value", "reason"), map(_limit_row, constants))


def agent_page() -> str:
    """Return the page of an agent definition's keys."""
    parts = [AGENT_DEFINITION, fields_table(AgentDefinition)]
    for key, model in INNER_MODELS.items():
        if model is not Limits:
            parts.append(f"\n## {code(key)}\n\n{_first_paragraph(model)}\n\n{fields_table(model)}")
    parts.append("\nThe keys of `limits` are those of [a job](jobs.md).\n")
    return "".join(parts)


def jobs_page() -> str:
    """Return the page of what goes into a job and what comes out."""
    parts = [JOBS]
    inner = (Limits, FileChange, Verification, Usage, ContextStats, JobError)
    for model in (JobSpec, JobRecord, JobResult, *inner):
        own = fields_table(model) if model is not JobRecord else _record_table()
        parts.append(f"\n## {model.__name__}\n\n{_first_paragraph(model)}\n\n{own}")
    return "".join(parts)


def events_page() -> str:
    """Return the page of a journal's events."""
    meanings = attribute_docs(EventType)
    return (
        EVENTS
        + fields_table(JournalEvent)
        + "\n## Types\n\n"
        + table(
            ("type", "meaning and data"),
            ((code(one.value), prose(meanings.get(one.name, ""))) for one in EventType),
        )
    )


def _limit_row(limit: Limit) -> tuple[str, ...]:
    return code(limit.title), written(limit), prose(limit.reason)


def _record_table() -> str:
    added = [name for name in JobRecord.model_fields if name not in JobSpec.model_fields]
    return "The fields of `JobSpec`, and:\n\n" + fields_table(JobRecord, added)


def _first_paragraph(model: type) -> str:
    return prose(" ".join((model.__doc__ or "").split("\n\n")[0].split()))


SETTINGS = """# Settings

In the environment a setting has the name below; in `config.toml` it has the lower-case name without
the prefix, and what is in front of `__` is its table. [Configuration](../configuration.md) says
which source wins.
"""

LIMITS = """# Limits

Every limit that is not a [setting](settings.md), with its reason. `fanout config --limits` prints
both, with the values in force.

"""

AGENT_DEFINITION = """# Agent definition

The keys of a YAML file in `agents/`; [Agents](../agents.md) shows them in use. An unknown key is an
error that names the file and the line. `instruction_file` (a path relative to the definition) may
take the place of `instruction`.

"""

JOBS = """# Jobs

The fields of the JSON that `fanout submit --file` reads (`JobSpec`), and that `fanout show --json`
(`JobRecord`) and `fanout result --json` (`JobResult`) print. Programs get the same models from
`JobClient`.
"""

EVENTS = """# Events

The entries of a job's journal, as `fanout logs ID --json` prints them, one JSON object per line, and
`JobClient.events()` yields them. Readers ignore types that they do not know.

"""
