"""Models of pydantic whose texts every encoding can hold; see `valid_text`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticSerializationError

from .valid_text import clean


class ValidTextModel(BaseModel):
    """A model whose texts are cleaned when it is validated."""

    @model_validator(mode="before")
    @classmethod
    def _clean_texts(cls, values: Any) -> Any:
        return clean(values)


def valid_json(model: BaseModel, **options: Any) -> str:
    """Return a model as JSON whatever its texts are; invalid characters are replaced.

    Args:
        model: The model.
        **options: As for `model_dump_json`.
    """
    try:
        return model.model_dump_json(**options)
    except PydanticSerializationError:
        cleaned = type(model).model_validate(clean(model.model_dump()))
        return cleaned.model_dump_json(**options)
