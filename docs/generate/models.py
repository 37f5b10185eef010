"""Fields of pydantic models as tables: name, type, default, meaning."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from docs.generate.markdown import code, prose, table

MOST_VALUES = 8
"""Of an enumeration that is written out; a longer one has a table of its own."""


class Row(NamedTuple):
    """One field."""

    name: str
    kind: str
    default: str
    meaning: str


def fields_table(
    model: type[BaseModel], names: Sequence[str] | None = None, *, prefix: str = ""
) -> str:
    """Return a table of fields.

    Args:
        model: The model.
        names: Its fields; None: all.
        prefix: Of the environment variables, if the fields are settings.
    """
    chosen = [row for row in rows(model) if names is None or row.name in names]
    return table(
        ("setting" if prefix else "field", "type", "default", "meaning"),
        (
            (
                code(prefix + row.name.upper() if prefix else row.name),
                code(row.kind),
                code(row.default),
                prose(row.meaning),
            )
            for row in chosen
        ),
    )


def rows(model: type[BaseModel]) -> Iterator[Row]:
    """Yield the fields of a model in their order."""
    meanings = attribute_docs(model)
    for name, field in model.model_fields.items():
        yield Row(name, kind_of(field.annotation), default_of(field), meanings.get(name, ""))


def attribute_docs(model: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class and of the classes it is made from."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.partition(".")[0] != "fanout":
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for statement, following in zip(statements, [*statements[1:], ast.Pass()], strict=True):
            match statement, following:
                case (
                    ast.AnnAssign(target=ast.Name(id=name))
                    | ast.Assign(targets=[ast.Name(id=name)]),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    found[name] = text
    return found


def default_of(field: FieldInfo) -> str:
    """Return a field's default as a setting's file would write it; empty: it has to be given."""
    if field.is_required():
        return ""
    if field.default_factory is not None:
        return "{}" if field.default_factory is dict else "computed"
    value = field.default
    if value is None or isinstance(value, BaseModel):
        return "unset"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return "[]"
    return str(value) if isinstance(value, str | Path) else repr(value)


def kind_of(annotation: Any) -> str:
    """Return a type as people write it: `list of text`, `docker or local`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind_of(inner[0])
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(one) for one in inner if one is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin is tuple:
        return f"list of {kind_of(inner[0])}"
    if origin in (dict, Mapping):
        return f"mapping to {kind_of(inner[1])}"
    return _plain(annotation)


def _plain(annotation: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    if annotation is SecretStr:
        return "secret"
    if annotation in names:
        return names[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        values = [str(one.value) for one in annotation]
        return " or ".join(values) if len(values) <= MOST_VALUES else "text"
    return getattr(annotation, "__name__", None) or getattr(annotation, "name", None) or "JSON"
