"""Reads a report of another release as far as this one understands it.

A release to come may know more kinds of a thing, or permit longer texts. What is only shown is then
left out; what something is decided by has to be understood.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .failures import NotUnderstood

Model = TypeVar("Model", bound=BaseModel)
_Place = tuple[int | str, ...]


def read_understood(
    model: type[Model], stored: Mapping[str, Any], what: str, *, decisive: Collection[str] = ()
) -> tuple[Model, tuple[str, ...]]:
    """Return a stored model, and the names of its fields of which parts are left out.

    Args:
        model: The model's class. Unknown fields are ignored.
        stored: Its fields.
        what: What it is, for the failure's message.
        decisive: The fields that are never left out; those without a default are not either.

    Raises:
        NotUnderstood: A part that is never left out has a form that this release does not know.
    """
    known: Any = stored
    left_out: set[str] = set()
    while True:
        try:
            return model.model_validate(known, extra="ignore"), tuple(sorted(left_out))
        except ValidationError as error:
            places = {_innermost(known, detail["loc"]) for detail in error.errors()}
        fields = {str(place[0]) if place else "" for place in places}
        if "" in fields or not fields.isdisjoint(decisive):
            raise not_understood(what)
        left_out |= fields
        for place in sorted(places, reverse=True):  # of a list, the last item first
            known = _without(known, place)


def not_understood(what: str) -> NotUnderstood:
    """Return the failure to read what another release has written."""
    return NotUnderstood(f"{what} is of another release of fanout: use one that is as new.")


def _innermost(value: Any, place: _Place) -> _Place:
    """Return the place of a failure, as far as it exists: that of a missing field is its owner."""
    for depth, step in enumerate(place):
        is_there = (
            step in value
            if isinstance(value, Mapping)
            else isinstance(value, list) and isinstance(step, int) and step < len(value)
        )
        if not is_there:
            return place[:depth]
        value = value[step]
    return place


def _without(value: Any, place: _Place) -> Any:
    """Return a copy without what is at a place; the rest is shared."""
    copy = list(value) if isinstance(value, list) else dict(value)
    first: Any = place[0]
    if len(place) == 1:
        del copy[first]
    else:
        copy[first] = _without(copy[first], place[1:])
    return copy
