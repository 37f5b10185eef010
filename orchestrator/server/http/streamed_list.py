"""A list that is sent in parts, so that only one part of it is in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from pydantic import BaseModel
from starlette.responses import StreamingResponse


async def streamed_list(
    kind: type[BaseModel], parts: AsyncGenerator[Sequence[BaseModel], None]
) -> StreamingResponse:
    """Return the JSON of a model whose field `items` is sent in parts, and whose others are unset.

    The first part is read before the response begins, so its failures have their own status.

    Args:
        kind: The model.
        parts: The items.
    """
    first = await anext(parts, None) or []

    async def chunks() -> AsyncIterator[str]:
        head, _, tail = kind(items=[]).model_dump_json().partition("[]")
        yield f"{head}[" + ",".join(one.model_dump_json() for one in first)
        is_empty = not first
        async with aclosing(parts):
            async for part in parts:
                text = ",".join(one.model_dump_json() for one in part)
                yield text if is_empty or not text else f",{text}"
                is_empty = is_empty and not text
        yield f"]{tail}"

    return StreamingResponse(chunks(), media_type="application/json")
