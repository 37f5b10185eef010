"""requirements.lock has what constraints.txt pins, each package with its hashes."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.sources import REPOSITORY

LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
LOCKED = {
    canonicalize_name(requirement.name): (requirement, line.count("--hash=sha256:"))
    for line in LOCK.splitlines()
    if line.strip()
    for requirement in [Requirement(line.split("--hash")[0])]
}
PINNED = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([A-Za-z0-9_.-]+)==(\S+)",
        (REPOSITORY / "constraints.txt").read_text("utf-8"),
        re.MULTILINE,
    )
}


def test_every_locked_package_has_one_version_and_a_hash():
    assert len(LOCKED) > 50
    assert [name for name, (requirement, hashes) in LOCKED.items() if not hashes] == []
    assert {str(requirement.specifier)[:2] for requirement, _ in LOCKED.values()} == {"=="}


def test_the_lock_and_the_constraints_name_the_same_versions():
    different = {
        name: str(requirement.specifier)
        for name, (requirement, _) in LOCKED.items()
        if name in PINNED and str(requirement.specifier) != f"=={PINNED[name]}"
    }

    assert different == {}, "run `make lock`"


def test_what_the_project_needs_is_locked():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    needed = {canonicalize_name(Requirement(one).name) for one in project["dependencies"] + extras}

    assert needed - LOCKED.keys() == {project["name"]}, "run `make lock`"  # by the extra `all`
