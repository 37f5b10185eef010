"""Folders of the person's machine: nobody else's browser or program gets them, and no way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.api_settings import ApiSettings
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.server.person_folders import PersonFolders, person_folders

NOBODY = cast("JobClient", None)
"""The client is not asked before a folder is found."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home" / "ann"
    for name in ("project/src", ".ssh", "project/.git/hooks"):
        (home / name).mkdir(parents=True)
    (tmp_path / "home" / "bob").mkdir()
    (home / "notes.txt").write_text("text")
    (home / "out").symlink_to(tmp_path / "home" / "bob")
    (home / "keys").symlink_to(home / ".ssh")
    (home / "inside").symlink_to(home / "project")
    (home / "circle").symlink_to(home / "circle")
    return home


@pytest.fixture
def folders(home: Path, tmp_path: Path) -> PersonFolders:
    return PersonFolders(NOBODY, home, home / "project", tmp_path / "state")


async def test_a_person_sees_the_folders_below_home_and_no_hidden_or_linked_ones(folders, home):
    found = await folders.look(str(home))
    assert (found.path, found.parent, list(found.names)) == (home, None, ["project"])
    inside = await folders.look(str(home / "inside"))
    assert (inside.path, inside.parent, inside.is_repository) == (home / "project", home, True)
    assert (await folders.look("")).path == home / "project"


@pytest.mark.parametrize(
    "path",
    [
        "..", "../bob", "project/../../bob", "out", "out/../bob", "keys", ".ssh", "project/.git",
        "project/.git/hooks", "notes.txt", "missing", "circle", "a\0b", "x" * 5000, "project/" * 900,
    ],
)  # fmt: skip
@pytest.mark.parametrize("door", ["look", "start_files", "apply"])
async def test_no_path_leads_out_of_home_or_into_hidden_folders(folders, home, path, door):
    given: dict[str, Any] = {
        "look": (f"{home}/{path}",),
        "start_files": (f"{home}/{path}", "general-purpose"),
        "apply": ("job-1", f"{home}/{path}"),
    }
    options = {"check": False} if door == "apply" else {}
    with pytest.raises(InvalidJob, match="Choose an existing folder below"):
        await getattr(folders, door)(*given[door], **options)


@pytest.mark.parametrize("path", ["project", "./project", "~/project", "/", "/etc", "/proc/self"])
async def test_only_whole_paths_of_the_persons_own_folders_are_taken(folders, path):
    with pytest.raises(InvalidJob, match="Choose an existing folder"):
        await folders.look(path)


@pytest.fixture(params=["/", ".."])
def started_above(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> PersonFolders:
    return PersonFolders(NOBODY, home, home / request.param, tmp_path / "state")


async def test_a_service_that_was_started_above_home_opens_nothing_more(started_above, home):
    assert (await started_above.look("")).path == home
    with pytest.raises(InvalidJob):
        await started_above.look(str(home.parent / "bob"))


@pytest.mark.parametrize(
    ("settings", "is_embedded", "has_folders"),
    [
        ({}, True, True),
        ({"host": "::1"}, True, True),
        ({}, False, False),
        ({"host": "::"}, True, False),
        ({"host": "192.0.2.7"}, True, False),
        ({"public_url": "https://fanout.example.com"}, True, False),
        ({"trusted_proxies": ["127.0.0.1"]}, True, False),
        ({"trusted_hosts": ["fanout.example.com"]}, True, False),
        ({"allowed_origins": ["https://example.com"]}, True, False),
    ],
)
def test_only_the_service_of_one_person_on_its_own_machine_has_folders(
    settings, is_embedded, has_folders, tmp_path
):
    found = person_folders(NOBODY, ApiSettings(**settings), tmp_path, is_embedded=is_embedded)
    assert (found is not None) == has_folders
