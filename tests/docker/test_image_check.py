from __future__ import annotations

import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fanout.workers.extras.image_building import build_image, import_image
from fanout.workers.extras.images import (
    MODULES,
    PROBE_LABEL,
    Finding,
    examine,
    main,
)
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import ImageUnfit
from tests.docker.conftest import make_sandbox_spec

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

INSIDE = Path("workers/sandbox/inside")


@pytest_asyncio.fixture
async def new_image(engine: Engine) -> AsyncIterator[str]:
    """The name of an image that the test makes; it is removed afterwards."""
    name = f"fanout-test/{secrets.token_hex(4)}:latest"
    yield name
    await engine.call("remove an image", lambda api: api.remove_image(name, force=True))


async def make(engine: Engine, folder: Path, image: str, *lines: str) -> None:
    dockerfile = "\n".join(["FROM fanout/base:latest", "USER root", *lines])
    (folder / "Dockerfile").write_text(f"{dockerfile}\n")
    await build_image(engine, folder, image, arguments={}, labels={}, on_line=lambda _line: None)


def statuses(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.status for finding in findings}


async def test_our_image_has_what_jobs_need_and_its_container_is_removed(engine: Engine) -> None:
    findings = await examine(engine, "fanout/python:latest")

    assert set(statuses(findings).values()) == {"ok"}
    assert await engine.containers([f"{PROBE_LABEL}=fanout/python:latest"]) == []


@pytest.mark.slow
async def test_an_image_without_python_is_told_in_one_sentence_by_the_check_and_by_a_job(
    engine: Engine, provider: DockerProvider, new_image: str, tmp_path: Path
) -> None:
    await make(engine, tmp_path, new_image, "RUN rm /usr/bin/python3* /usr/bin/git")

    findings = statuses(await examine(engine, new_image))

    assert findings == {"python3": "fail", "/bin/sh": "ok", "git": "warn"}
    with pytest.raises(ImageUnfit) as caught:
        async with provider.open(make_sandbox_spec(image=new_image)):
            pass
    assert "has no python3 on its PATH" in str(caught.value)
    assert "OCI" not in str(caught.value)
    assert not caught.value.retryable


async def test_a_python_that_is_too_old_or_cut_down_is_told(
    engine: Engine, provider: DockerProvider, new_image: str, tmp_path: Path
) -> None:
    old = {"version": [3, 6, 9], "path": "/usr/bin/python3", "modules": [], "sh": True}
    shown = json.dumps({**old, "bash": None, "git": None, "user": None})
    script = f"RUN rm /usr/bin/python3 && printf '#!/bin/sh\\necho {json.dumps(shown)}\\n'"
    await make(
        engine, tmp_path, new_image, f"{script} > /usr/bin/python3 && chmod 755 /usr/bin/python3"
    )

    found = {finding.name: finding for finding in await examine(engine, new_image)}

    assert found["python3"].status == "fail"
    assert "is 3.6.9: sandboxes need 3.8 or newer" in found["python3"].found
    assert [found[name].status for name in ("bash", "git", "user")] == ["warn"] * 3


async def test_an_image_with_nothing_lacks_everything(engine: Engine, new_image: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    archive.seek(0)
    repository, _, tag = new_image.partition(":")
    await import_image(engine, archive, repository, tag)

    findings = statuses(await examine(engine, new_image))

    assert findings == {"python3": "fail", "/bin/sh": "fail"}


def test_the_command_ends_with_0_or_1_and_names_the_nearest_image(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "fanout/base", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"]
    assert main(["check", "pyhton"]) == 1
    said = capsys.readouterr().err
    assert said == "The image pyhton is not on this engine; the nearest name is fanout/python.\n"


def test_the_modules_that_are_asked_for_are_those_that_the_resident_imports() -> None:
    source = "\n".join(path.read_text() for path in INSIDE.rglob("*.py"))

    assert [name for name in MODULES if f"import {name}" not in source] == []
