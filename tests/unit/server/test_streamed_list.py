"""A list that is sent in parts is the JSON of the whole one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
from pydantic import BaseModel

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.server.http.jobs import streamed_list


class Item(BaseModel):
    name: str


class Items(BaseModel):
    items: list[Item]
    next_cursor: str | None = None


async def read(numbers: Sequence[int], asked: list[int]) -> AsyncGenerator[list[Item], None]:
    for number in numbers:
        asked.append(number)
        yield [Item(name="[] é")] * number


@pytest.mark.parametrize("numbers", [[], [0], [3], [2, 0, 1], [0, 0, 2], [1, 1, 1]])
async def test_parts_are_read_one_by_one_while_they_are_sent(numbers: list[int]) -> None:
    asked: list[int] = []
    response = await streamed_list(Items, read(numbers, asked))
    assert len(asked) <= 1
    sent = []
    async for chunk in response.body_iterator:
        sent.append(str(chunk))
        assert len(asked) <= len(sent)
    whole = Items(items=[Item(name="[] é")] * sum(numbers))
    assert "".join(sent) == whole.model_dump_json()


async def test_what_the_first_part_raises_is_raised_before_the_response() -> None:
    async def failing() -> AsyncGenerator[list[Item], None]:
        raise LedgerUnavailable("Redis does not answer.")
        yield []

    with pytest.raises(LedgerUnavailable):
        await streamed_list(Items, failing())
