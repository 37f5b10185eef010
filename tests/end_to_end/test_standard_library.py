"""Eight jobs at once on a workspace that nobody here wrote.

The standard library of the running Python.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.services import Installation, containers_of, volumes_of

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.redis, pytest.mark.timeout(300)]

FIRST_LINE = '"""Text wrapping and filling.\n'
LAST_LINE = '    print(dedent("Hello there.\\n  This is indented."))'


def edit(old: str, new: str) -> list[dict[str, Any]]:
    read = call("read_file", file_path="/workspace/textwrap.py")
    change = call("edit_file", file_path="/workspace/textwrap.py", old_string=old, new_string=new)
    return [calls(read), calls(change)]


UNIT_TESTS = shell("python3 -m unittest -q test.test_textwrap")
JOBS = {
    "edit the top": [
        *edit(FIRST_LINE, '"""Text wrapping, filling and more.\n'),
        UNIT_TESTS,
    ],
    "edit the bottom": edit(LAST_LINE, LAST_LINE + "  # a demonstration"),
    "contradict the top": edit(FIRST_LINE, '"""Something else entirely.\n'),
    "add": [
        calls(
            call("write_file", file_path="/workspace/fanout_added/new.py", content="VALUE = 1\n")
        ),
        shell(
            "mkdir empty_folder && printf '\\000\\001' > blob.bin && chmod 755 fanout_added/new.py"
        ),
    ],
    "delete": [shell("rm -r wsgiref")],
    "rename": [shell("mv colorsys.py colours.py && echo '# moved' >> colours.py")],
    "chmod": [shell("chmod 755 antigravity.py")],
    "link": [
        shell(
            "ln -s textwrap.py wrap_link.py && rm this.py && python3 -m unittest -q test.test_bisect"
        )
    ],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library") / "lib"
    ignored = shutil.ignore_patterns(
        "__pycache__", "site-packages", "dist-packages", "lib-dynload", "config-*"
    )
    shutil.copytree(sysconfig.get_paths()["stdlib"], folder, ignore=ignored, symlinks=True)
    if not (folder / "test" / "test_textwrap.py").exists():
        pytest.skip("this Python was installed without its tests")
    return folder


place = place_fixture(
    *(conversation(f"^{name}$", *steps, DONE) for name, steps in JOBS.items()),
    scope="module",
    workers=1,
    concurrency=8,
    FANOUT_SANDBOX__PROVIDER="docker",
)


def fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{path.relative_to(folder)} {status.st_mode}\n".encode())
        if stat.S_ISREG(status.st_mode):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def listed(result: JobResult) -> set[tuple[str, str]]:
    return {(str(file.change), file.path) for file in result.files_modified}


def assert_merged(library: Path) -> None:
    text = (library / "textwrap.py").read_text()
    assert text.startswith('"""Text wrapping, filling and more.')
    assert text.rstrip().endswith("# a demonstration")
    assert "<<<<<<<" not in text
    assert (library / "blob.bin").read_bytes() == b"\0\1"
    assert os.access(library / "fanout_added" / "new.py", os.X_OK)
    assert not (library / "wsgiref").exists()
    assert (library / "wrap_link.py").readlink() == Path("textwrap.py")


@pytest.mark.slow
async def test_eight_jobs_edit_one_library_and_their_changes_meet(
    client: JobClient, library: Path
) -> None:
    before = fingerprint(library)
    wsgiref = {
        ("deleted", str(path.relative_to(library)))
        for path in (library / "wsgiref").rglob("*")
        if path.is_file()
    }
    ids = await client.submit_many([(make_spec(name, root_id="library"), library) for name in JOBS])
    results = dict(zip(JOBS, [await client.wait(job_id, 120) for job_id in ids], strict=True))

    assert {name: result.error for name, result in results.items() if not result.success} == {}
    assert fingerprint(library) == before, "a job changed the source folder"
    assert listed(results["edit the top"]) == {("modified", "textwrap.py")}
    assert listed(results["edit the bottom"]) == {("modified", "textwrap.py")}
    assert listed(results["add"]) == {
        ("added", "fanout_added/new.py"),
        ("added", "empty_folder"),
        ("added", "blob.bin"),
    }
    assert listed(results["delete"]) == wsgiref
    assert listed(results["rename"]) == {("renamed", "colours.py")}
    assert listed(results["chmod"]) == {("mode", "antigravity.py")}
    assert listed(results["link"]) == {("added", "wrap_link.py"), ("deleted", "this.py")}

    reports = [await client.apply(job_id, library) for job_id in ids]
    again = [await client.apply(job_id, library) for job_id in ids if job_id != ids[2]]

    conflicts = [[conflict.path for conflict in report.conflicts] for report in reports]
    assert conflicts == [[], [], ["textwrap.py"], [], [], [], [], []]
    assert not any(report.conflicts or report.refused for report in again)
    assert_merged(library)


@pytest.mark.usefixtures("library")
async def test_nothing_of_them_is_left_when_the_worker_stops(place: Installation) -> None:
    await asyncio.to_thread(place.stop)

    assert containers_of(place.identity) == []
    assert volumes_of(place.identity) == []
