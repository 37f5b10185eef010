"""The resident starts only where its commands provably cannot reach its stream and its memory."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.docker.steward_client import code_files
from fanout.workers.sandbox.errors import SandboxNotSecluded
from fanout.workers.sandbox.inside.seclusion import REFUSAL
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import make_sandbox_spec
from tests.unit.test_resident import WITHOUT_PTRACE

REACH_THE_RESIDENT = r"""
for path in /proc/1/fd/* /proc/1/task/*/fd/*; do readlink "$path" && echo REACHED; done
for number in 0 1 2 3 4 5 6 7 8 9; do (echo forged > /proc/1/fd/$number) && echo REACHED; done
(head -c 1 /proc/1/environ | grep -q . ) && echo REACHED
(exec 9<> /proc/1/mem) && echo REACHED
cat /proc/1/maps | grep -q . && echo REACHED
true
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name, content in code_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


async def start(code: Path, *before: str, program: str = "") -> tuple[int | None, bytes, bytes]:
    """Start a resident whose input ends at once; return its exit code and its outputs."""
    arguments = ["-ISB", str(code)] if not program else ["-ISBc", program, str(code)]
    process = await asyncio.create_subprocess_exec(
        *before, sys.executable, *arguments, stdin=-1, stdout=-1, stderr=-1,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    output, errors = await process.communicate(b"")
    return process.returncode, output, errors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's children may attach to it")
async def test_it_does_not_start_when_its_children_could_attach_to_it(code: Path) -> None:
    exit_code, output, errors = await start(code)

    assert (exit_code, output) == (1, b"")
    assert errors.decode().strip() == REFUSAL


async def test_it_starts_where_they_could_not(code: Path) -> None:
    exit_code, output, errors = await start(code, *WITHOUT_PTRACE)

    assert (exit_code, errors) == (0, b"")
    assert output


async def test_where_nothing_makes_it_undumpable_it_does_not_start(code: Path) -> None:
    program = (
        "import sys; sys.modules['ctypes'] = None; sys.path.insert(0, sys.argv[1]); import os;"
        "os.memfd_create = lambda name: (_ for _ in ()).throw(OSError(1, 'refused'));"
        "from fanout.workers.sandbox.inside.resident import main; main()"
    )
    exit_code, output, errors = await start(code, *WITHOUT_PTRACE, program=program)

    assert (exit_code, output) == (1, b"")
    assert errors.decode().strip() == REFUSAL


@pytest.fixture
async def image_without_ctypes(engine: Engine) -> AsyncIterator[str]:
    name = f"fanout-test/{secrets.token_hex(4)}"
    recipe = (
        "FROM fanout/base\nUSER root\n"
        "RUN rm -rf /usr/lib/python3*/ctypes /usr/lib/python3*/lib-dynload/_ctypes*\n"
        "USER 10001:10001\n"
    )
    await docker("build", "--tag", name, "-", given=recipe.encode())
    yield name
    await docker("rmi", "--force", name)


async def docker(*arguments: str, given: bytes = b"") -> None:
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdin=-1, stdout=-1, stderr=-1
    )
    output, errors = await process.communicate(given)
    assert process.returncode == 0, (output + errors).decode()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_in_an_image_without_ctypes_its_stream_is_out_of_reach_as_well(
    make_provider: Callable[..., DockerProvider], image_without_ctypes: str
) -> None:
    spec = make_sandbox_spec(image=image_without_ctypes)
    async with make_provider().open(spec) as sandbox:
        missing = await sandbox.run(Command(argv=["python3", "-c", "import ctypes"]))
        attempt = await sandbox.run(Command(argv=REACH_THE_RESIDENT))
        memory = await sandbox.run(Command(argv="cat /proc/self/oom_score_adj"))

    assert missing.exit_code == 1
    assert b"REACHED" not in attempt.output
    assert memory.output.strip() == b"800"  # a command goes first when memory runs out


@pytest.mark.docker
@pytest.mark.timeout(300)
async def test_a_refusal_to_start_is_told_in_one_sentence(
    make_provider: Callable[..., DockerProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider()
    real = container_config.sandbox_config

    def dumpable(**options: object) -> dict[str, object]:
        """A container whose commands may attach to anything, as in a runtime that is not ours."""
        config = real(**options)
        config["HostConfig"] |= {"CapDrop": [], "CapAdd": ["SYS_PTRACE"], "SecurityOpt": []}
        return {**config, "User": "0:0"}

    monkeypatch.setattr(container_config, "sandbox_config", dumpable)
    with pytest.raises(SandboxNotSecluded, match="Commands could take over"):
        async with provider.open(make_sandbox_spec()):
            pass
