"""Jobs on a folder that a person edits between them: each finds it as it was when it was given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.builders import make_spec
from tests.bundles import tree_of
from tests.fixtures import BOTH_PROVIDERS, place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = conversation("note it", shell("cat a b c > seen 2>&1; echo more >> a"), DONE)


place = place_fixture(SCRIPT, providers=BOTH_PROVIDERS, workers=1)


@pytest.mark.slow
async def test_a_job_finds_what_was_edited_and_its_changes_are_merged(
    place: Installation, tmp_path: Path
) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text(f"{name} at first\n")
    async with place.client() as client:
        await place.ready(client)
        first = await client.run(make_spec("note it"), workspace=folder)
    (folder / "b").unlink()
    (folder / "c").write_text("c at last\n")
    async with place.client() as client:
        second = await client.run(make_spec("note it"), workspace=folder)
        records = [await client.get(one.job_id) for one in (first, second)]

    assert (first.success, second.success) == (True, True)
    assert records[0].snapshot == records[1].snapshot
    assert [len(one.layers) for one in records] == [0, 1]
    files = await asyncio.to_thread(tree_of, folder)
    assert files["a"][2] == b"a at first\nmore\nmore\n"
    assert files["seen"][2].startswith(b"a at first\nmore\ncat: b")
    assert files["seen"][2].endswith(b"c at last\n")
