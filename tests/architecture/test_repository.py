import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.house import public_classes
from tests.architecture.sources import PACKAGES, REPOSITORY, package_sources, repository_files

OUR_FOLDERS = {
    ".ci",
    "config",
    "docs",
    "fanout",
    "orchestrator",
    "sandbox_images",
    "tests",
    "workers",
}

OF_ONE_MACHINE = re.compile(
    r"(?<![\w.])/(?:home|Users|work|root)/[\w.-]+/[\w.-]+"  # somebody's folder
    r"|(?:https?://|@)[\w.-]*(?:artifactory|nexus|pypi|jfrog|registry|mirror)[\w-]*"  # where packages are
    r"\.(?!example\b)[\w.-]+"
    r"|BEGIN [A-Z ]*PRIVATE KEY",
)
BUILT_FROM_PARTS = "tests/architecture/test_repository.py"


def texts() -> list[tuple[str, str]]:
    files = [(name, (REPOSITORY / name).read_bytes()) for name in repository_files()]
    return [
        (name, data.decode("utf-8", "replace")) for name, data in files if b"\0" not in data[:8000]
    ]


def module_names(package: str) -> list[str]:
    """A package's modules as programs import them: all are below `fanout`."""
    names = [
        f"fanout/{name.removeprefix('fanout/')}"
        for name, _ in package_sources()
        if name.startswith(f"{package}/") and not name.endswith("__main__.py")
    ]
    return [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]


def test_top_level_names_are_ours():
    folders = {name.split("/")[0] for name in repository_files() if "/" in name}

    assert folders - OUR_FOLDERS == set()
    assert not (
        REPOSITORY / "workers/celery.py"
    ).exists()  # it would hide the library from `celery -A`


def test_nothing_names_one_machine_or_where_its_packages_come_from():
    found = [
        f"{name}: {match[0]}"
        for name, text in texts()
        if name != BUILT_FROM_PARTS
        for match in OF_ONE_MACHINE.finditer(text)
    ]

    assert found == []


def test_nothing_is_committed_that_a_program_leaves_behind():
    left_behind = re.compile(
        r"\.(rdb|aof|pyc|log|sock|pid)$|(^|/)(__pycache__|\.venv|appendonlydir)/"
    )

    assert [name for name in repository_files() if left_behind.search(name)] == []


def test_every_test_folder_is_a_package():
    folders = {
        name.rpartition("/")[0] for name in repository_files() if re.search(r"^tests/.*\.py$", name)
    }

    assert [
        folder for folder in sorted(folders) if not (REPOSITORY / folder / "__init__.py").exists()
    ] == []


def test_every_side_and_every_room_of_ours_describes_itself():
    folders = {"/".join(name.split("/")[:-1][:2]) for name, _ in package_sources()}

    assert [folder for folder in sorted(folders) if not is_described(REPOSITORY / folder)] == []


def is_described(folder: Path) -> bool:
    """Whether it has a README, or a door whose docstring lists what is below it."""
    door = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    return (folder / "README.md").is_file() or "\n- `" in door


def test_the_name_of_a_public_class_stands_for_one_thing():
    clashes = {name for name, places in public_classes().items() if len(places) > 1}

    assert clashes == set()


def test_tests_hold_no_comments_for_a_type_checker_that_does_not_read_them():
    mark = "type: " + "ignore"

    assert [name for name, text in texts() if name.startswith("tests/") and mark in text] == []


def test_what_the_constraints_pin_is_what_the_project_asks_for():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    asked = [*project["project"]["dependencies"], *groups["dev"], *groups["docs"]]
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (REPOSITORY / "constraints.txt").read_text().split()
    }

    names = {canonicalize_name(Requirement(one).name) for one in asked}

    assert names - pinned == set()


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.slow
def test_importing_does_nothing_but_define(package, tmp_path):
    done = subprocess.run(
        [sys.executable, "-B", "-m", "tests.architecture.import_watch", *module_names(package)],
        cwd=REPOSITORY,
        env={"PATH": "", "HOME": str(tmp_path), "FANOUT_LOG_LEVEL": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
