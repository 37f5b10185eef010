from __future__ import annotations

import json
from pathlib import Path

import pytest

from fanout.orchestrator.configuration.coding_agents import CODING_AGENTS
from fanout.workers.extras import image_building
from fanout.workers.extras.image_building import (
    AptSource,
    ImageBuildFailed,
    build_image,
    host_sources,
)
from fanout.workers.extras.images import main
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import BUILT_ON, tag
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import make_sandbox_spec


@pytest.mark.docker
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("image", "programs"),
    [
        ("base", "python3 git rg gcc g++ make pkg-config ps patch file less unzip xz"),
        ("python", "python python3 git rg gcc make ps pip pytest"),
    ],
)
@pytest.mark.slow
async def test_an_image_has_what_its_readme_says(
    provider: DockerProvider, image: str, programs: str
) -> None:
    script = f"for p in {programs}; do command -v $p > /dev/null || echo missing $p; done"
    imports = "python3 -c 'import json, ctypes, tarfile, sqlite3, ssl, asyncio, multiprocessing, xml, lzma'"
    async with provider.open(make_sandbox_spec(image=tag(image))) as sandbox:
        result = await sandbox.run(Command(argv=f"{script}; {imports}; id -un; echo $HOME"))

        assert result.output == b"agent\n/home/agent\n"


@pytest.mark.docker
async def test_the_list_says_what_the_engine_has(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = {status.name: status for status in await image_building.list_images(engine)}

    assert list(statuses) == ["base", "python"]
    assert statuses["python"].present
    assert statuses["python"].size_bytes > 0


@pytest.mark.docker
async def test_an_image_is_out_of_date_when_its_folder_has_changed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BUILT_ON:
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setattr(image_building, "FOLDER", tmp_path)

    assert not any(status.up_to_date for status in await image_building.list_images(engine))


@pytest.mark.docker
async def test_a_build_that_fails_says_the_builders_last_words(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM fanout/base:latest\nRUN echo so far && exit 3\n")
    lines: list[str] = []
    with pytest.raises(ImageBuildFailed, match="returned a non-zero code: 3"):
        await build_image(
            engine, tmp_path, "fanout/test:x", arguments={}, labels={}, on_line=lines.append
        )

    assert "so far" in lines


def test_a_change_of_the_base_changes_what_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BUILT_ON:
        (tmp_path / name).mkdir()
        (tmp_path / name / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setattr(image_building, "FOLDER", tmp_path)
    before = image_building.content_hash("python")
    (tmp_path / "base" / "README.md").write_text("words")
    assert image_building.content_hash("python") == before
    (tmp_path / "base" / "Dockerfile").write_text("FROM other\n")
    assert image_building.content_hash("python") != before


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("pyhton", "did you mean python?"),
        ("opencod", "did you mean opencode?"),
        ("ruby", "choose from base, python, opencode, gemini-cli, codex, claude-code."),
    ],
)
def test_an_unknown_image_is_a_mistake_in_usage(
    capsys: pytest.CaptureFixture[str], typed: str, advice: str
) -> None:
    assert main(["build", typed]) == 2
    assert capsys.readouterr().err == f"There is no image {typed} of fanout's: {advice}\n"


def test_without_an_engine_the_program_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    assert main(["ls", "--json"]) == 3
    assert "start Docker" in capsys.readouterr().err


@pytest.mark.docker
def test_the_listing_is_one_document(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["images"]
    names = {entry["image"] for entry in listed}
    ours = {"fanout/base:latest", "fanout/python:latest"}
    assert ours <= names <= ours | {f"{one.image}:latest" for one in CODING_AGENTS.values()}


def test_the_machines_own_debian_sources_are_found_in_both_notations(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "deb http://mirror.example/debian bookworm main contrib\n"
        "# deb http://off.example/debian bookworm main\n"
        "deb [arch=amd64] http://other.example/ubuntu bookworm main\n"
        "deb http://mirror.example/debian trixie main\n"
    )
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb deb-src\nURIs: http://mirror.example/debian-security\n"
        "Suites: bookworm-security\nComponents: main\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n"
    )

    assert host_sources(tmp_path) == [
        AptSource("http://mirror.example/debian", "bookworm", "main contrib"),
        AptSource("http://mirror.example/debian-security", "bookworm-security", "main"),
    ]
