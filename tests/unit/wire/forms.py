"""The forms of all models that cross a boundary: field by field, without words about them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

from google.adk.events import Event
from pydantic import BaseModel

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.changes import Changes
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.jobs.worker_info import WorkerInfo

WORDS = ("title", "description")


def forms() -> dict[str, Any]:
    """Model -> field (those of inner models with a dot) -> its JSON schema."""
    models = {
        model.__name__: fields_of(model)
        for model in (JobSpec, JobResult, Approval, ApprovalAnswer, Changes)
    }
    return models | {
        "JournalEvent": {name: {} for name in JournalEvent.model_fields},
        "EventType": {str(kind): {} for kind in EventType},
        "JobState": {str(state): {} for state in JobState},
        "WorkerInfo": {field.name: {} for field in fields(WorkerInfo)},
        "AdkEvent": {"all of it": _digest(Event)},
    }


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model and of the models in them, by path."""
    schema = model.model_json_schema()
    inner = schema.get("$defs", {})
    found: dict[str, Any] = {}

    def walk(path: str, properties: dict[str, Any]) -> None:
        for name, form in properties.items():
            found[path + name] = _without_words(form)
            for reference in _references(form):
                walk(f"{path}{name}.", inner.get(reference, {}).get("properties", {}))
                if "enum" in inner.get(reference, {}):
                    found[f"{path}{name}"] |= {"enum": inner[reference]["enum"]}

    walk("", schema["properties"])
    return found


def _references(form: Any) -> list[str]:
    if isinstance(form, dict):
        here = [form["$ref"].rpartition("/")[2]] if isinstance(form.get("$ref"), str) else []
        return here + [name for value in form.values() for name in _references(value)]
    return [name for value in form for name in _references(value)] if isinstance(form, list) else []


def _without_words(form: Any) -> Any:
    if isinstance(form, dict):
        return {name: _without_words(value) for name, value in form.items() if name not in WORDS}
    return [_without_words(value) for value in form] if isinstance(form, list) else form


def _digest(model: type[BaseModel]) -> str:
    """Of a foreign model only whether it is another one.

    The names of its fields, and of those in them.
    """
    inner = model.model_json_schema()["$defs"]
    names = {
        name: sorted(form.get("properties", form.get("enum", ()))) for name, form in inner.items()
    }
    names["Event"] = sorted(model.model_fields)
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()
