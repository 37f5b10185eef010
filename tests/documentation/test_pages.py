"""What the pages say exists: languages, reasons, commands, settings, definitions, links."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from fanout.orchestrator.cli.commands.mcp import KEY_VARIABLE
from fanout.orchestrator.cli.commands.scripts import read_replies
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.configuration.setup_definition import read_repository_setup
from fanout.orchestrator.deep_agent.models.scripted_model import Script
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.server.notifications.messages import HookEvent
from tests.architecture.sources import REPOSITORY
from tests.documentation.blocks import CHECKED, RUN, SHOWN, Block, blocks, code_spans, pages
from tests.documentation.commands import complaint, fanout_commands, groups

MOST_README_LINES = 120
MOST_GLOSSARY_LINES = 80
OF_COMPOSE = set(re.findall(r"FANOUT_\w+", (REPOSITORY / "docker-compose.yml").read_text()))
OF_HOOKS = set(HookEvent("finished", "id", "root", "agent", "failed").variables())


def of(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


def test_every_block_says_what_it_is_and_only_what_could_run_has_a_reason_not_to():
    languages = RUN | CHECKED | SHOWN
    assert [str(block) for block in blocks() if block.language not in languages] == []
    assert [str(block) for block in blocks() if block.not_run and block.language not in RUN] == []
    assert len(blocks()) > 40


def test_every_shell_block_is_one():
    for block in of("sh"):
        done = subprocess.run(
            ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{block}: {done.stderr}"


def test_every_command_and_option_in_a_shell_block_exists():
    found = [
        f"{block}: {problem}"
        for block in of("sh")
        for arguments in fanout_commands(block.text)
        if (problem := complaint(arguments))
    ]

    assert found == []


def test_every_command_that_a_sentence_names_exists():
    problems = [
        f"{page.name}: {problem}"
        for page in pages()
        for span in code_spans(page)
        if re.match(r"(\.venv/bin/)?fanout [a-z-]", span)
        for arguments in fanout_commands(shlex_safe(span))
        if arguments[0] not in groups() or len(arguments) > 1
        if (problem := complaint(arguments))
    ]

    assert problems == []


def shlex_safe(span: str) -> str:
    """A command in a sentence may end with an ellipsis."""
    return span.replace("…", "").replace("'", " ")


def test_every_target_of_make_exists():
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    texts = [block.text for block in of("sh")] + [
        span for page in pages() for span in code_spans(page)
    ]
    named = {name for text in texts for name in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}

    assert named - targets - {"test"} == set()
    assert {"demo", "test"} <= named & targets


def test_every_setting_that_is_named_exists():
    """A name that ends with an ellipsis is the beginning of some."""
    known = setting_names() | OF_COMPOSE | OF_HOOKS | {KEY_VARIABLE}
    unknown = [
        f"{page.name}: {name}"
        for page in pages()
        for name in re.findall(r"FANOUT_[A-Z][A-Z_]*[A-Z]", page.read_text(encoding="utf-8"))
        if not name.startswith("FANOUT_SECRETS__")
        if not any(one.startswith(name) for one in known)
    ]

    assert unknown == []


def setting_names() -> set[str]:
    names = {"FANOUT_CONFIG"}
    for name, field in Settings.model_fields.items():
        names.add(f"FANOUT_{name.upper()}")
        if isinstance(field.default, BaseModel):
            inner = type(field.default).model_fields
            names |= {f"FANOUT_{name.upper()}__{one.upper()}" for one in inner}
    return names


def is_definition(text: str) -> bool:
    return "instruction" in text or "a2a:" in text


def test_every_definition_of_an_agent_can_be_loaded(tmp_path: Path):
    definitions = [block for block in of("yaml") if is_definition(block.text)]
    assert len(definitions) >= 4
    for number, block in enumerate(definitions):
        folder = tmp_path / str(number)
        (folder / "skills" / "a-skill").mkdir(parents=True)
        (folder / "skills" / "a-skill" / "SKILL.md").write_text(
            "---\nname: a-skill\ndescription: What it is for.\n---\nHow.\n"
        )
        (folder / "HOUSE_RULES.md").write_text("Rules.\n")
        name = yaml.safe_load(block.text)["name"]
        (folder / f"{name}.md").write_text("You work.\n")
        (folder / f"{name}.yaml").write_text(block.text)
        assert name in load_agent_definitions(folder), str(block)


def test_every_other_yaml_is_a_script_of_a_model_replies_of_a_dry_run_or_a_set_up(tmp_path: Path):
    for block in of("yaml"):
        if block.text.lstrip().startswith("- {match"):
            (tmp_path / "replies.yaml").write_text(block.text)
            assert read_replies(tmp_path / "replies.yaml"), str(block)
        elif block.text.startswith("commands:"):
            assert read_repository_setup(block.text.encode()).commands, str(block)
        elif not is_definition(block.text):
            assert Script.model_validate(yaml.safe_load(block.text)), str(block)


def test_every_toml_is_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number, block in enumerate(of("toml")):
        assert tomllib.loads(block.text)
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        monkeypatch.setenv("FANOUT_CONFIG", str(path))
        assert load_settings(), str(block)


def test_every_json_is_a_list_of_jobs():
    for block in of("json"):
        for line in block.text.splitlines():
            fields = json.loads(line)
            fields.pop("workspace", None)
            assert JobSpec.model_validate(fields), str(block)


def test_every_python_can_be_compiled():
    for block in of("python"):
        compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def test_the_readme_is_short():
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()

    assert len(lines) <= MOST_README_LINES
    assert max(map(len, lines)) <= 150


def test_the_glossary_fits_on_a_page_and_has_no_word_that_the_code_lacks():
    text = (REPOSITORY / "GLOSSARY.md").read_text(encoding="utf-8")
    sources = [
        path for side in ("orchestrator", "workers") for path in (REPOSITORY / side).rglob("*.py")
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", code).lower()

    assert len(text.splitlines()) <= MOST_GLOSSARY_LINES
    assert [term for term in re.findall(r"\*\*(.+?)\*\*", text) if term not in words] == []


@pytest.mark.parametrize("page", ["README.md", "GLOSSARY.md", "SECURITY.md", "CHANGELOG.md"])
def test_every_link_to_a_file_leads_there(page):
    """Sphinx checks those of `docs/`."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]

    assert [link for link in links if not (REPOSITORY / link).exists()] == []
