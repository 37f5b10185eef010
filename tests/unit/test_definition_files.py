"""What an agent definition brings along: checked where it is loaded, read where it runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout.orchestrator.configuration import definition_files
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    InvalidAgentDefinition,
    load_agent_definition,
    load_agent_definitions,
)
from fanout.orchestrator.configuration.definition_files import (
    DefinitionFiles,
    UnusableDefinitionFile,
    resolved_paths,
)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A definition's folder, with a stranger's file outside of it."""
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "agents"
    skill = folder / "skills" / "stamp"
    (skill / "scripts").mkdir(parents=True)
    (folder / "AGENTS.md").write_text("house rules")
    (skill / "SKILL.md").write_text("---\nname: stamp\ndescription: Stamps.\n---\n")
    (skill / "scripts" / "stamp.sh").write_text("#!/bin/sh\n")
    (skill / "scripts" / "stamp.sh").chmod(0o755)
    return folder


def write(beside: Path, more: str) -> Path:
    path = beside / "scribe.yaml"
    path.write_text(f"name: scribe\ndescription: Writes.\n{more}\ninstruction: Write.\n")
    return path


def test_the_files_keep_their_relative_paths_and_whether_they_run(beside):
    (beside / "skills" / "stamp" / "__pycache__").mkdir()
    (beside / "skills" / "stamp" / "__pycache__" / "x.pyc").write_bytes(b"\0")
    definition = load_agent_definition(
        write(beside, "memory: [AGENTS.md, /workspace/AGENTS.md]\nskills: [./skills, skills/stamp]")
    )

    files = {file.path: file for file in definition.files}

    script = "skills/stamp/scripts/stamp.sh"
    assert set(files) == {"AGENTS.md", "skills/stamp/SKILL.md", script}
    assert files["AGENTS.md"].data == b"house rules"
    assert [path for path, file in files.items() if file.executable] == [script]
    assert resolved_paths(definition.memory, "/h") == ("/h/AGENTS.md", "/workspace/AGENTS.md")
    assert resolved_paths(definition.skills, "/h") == ("/h/skills", "/h/skills/stamp")


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("memory: [NOTES.md]", ":3: memory: there is no NOTES.md next to the definition"),
        ("model: gpt-x\nskills: [more]", ":4: skills: there is no more next to the definition"),
        ("memory: [skills]", ":3: memory: there is no file skills"),
        ("skills: [AGENTS.md]", ":3: skills: there is no folder AGENTS.md"),
        (
            "memory: [../secret.txt]",
            ":3: memory: ../secret.txt leads out of the definition's folder",
        ),
        ("memory: [skills/../AGENTS.md]", "leads out of the definition's folder"),
        ("memory: [link.md]", "link.md leads out of the definition's folder"),
        ("skills: [linked]", "linked leads out of the definition's folder"),
        ('memory: ["a\\0b"]', "cannot be read"),
        ("instruction_file: ../secret.txt", ":3: instruction_file: ../secret.txt leads out of"),
        ("instruction_file: link.md", ":3: instruction_file: link.md leads out of"),
        ("instruction_file: /etc/hostname", ":3: instruction_file: /etc/hostname leads out of"),
        ("instruction_file: linked/secret.txt", ":3: instruction_file: linked/secret.txt leads"),
        ("instruction_file: skills", ":3: instruction_file: there is no file skills"),
        ("instruction_file: GONE.md", ":3: instruction_file: there is no GONE.md next to"),
        ("model: scripted:../secret.txt", ":3: model: ../secret.txt leads out of"),
    ],
)
def test_a_path_that_cannot_be_used_is_told_with_file_and_line(beside, more, fault):
    (beside / "link.md").symlink_to("../secret.txt")
    (beside / "linked").symlink_to(beside.parent)

    with pytest.raises(InvalidAgentDefinition) as raised:
        load_agent_definition(write(beside, more))

    assert str(raised.value).startswith(f"{beside}/scribe.yaml")
    assert fault in str(raised.value)


def test_half_a_character_in_a_definition_is_replaced_wherever_it_stands(beside):
    half = r'"\ud800 and \ud83d\ude00"'
    path = write(
        beside, f"output_schema: {{type: object, title: {half}, properties: {{{half}: {{}}}}}}"
    )
    path.write_text(path.read_text().replace("Writes.", half))

    definition = load_agent_definition(path)

    clean = "\N{REPLACEMENT CHARACTER} and \N{GRINNING FACE}"
    assert definition.description == clean
    assert definition.output_schema == {
        "type": "object",
        "title": clean,
        "properties": {clean: {}},
    }


@pytest.mark.parametrize("name", ["scribe.yaml", "words.md"])
def test_a_definition_that_is_not_utf_8_is_told_with_its_line(beside, name):
    path = write(beside, "")
    path.write_text("name: scribe\ndescription: Writes.\ninstruction_file: words.md\n")
    (beside / "words.md").write_text("one\ntwo\n")
    with (beside / name).open("ab") as file:
        file.write(b"# caf\xe9\n")

    line = 4 if name == "scribe.yaml" else 3
    with pytest.raises(
        InvalidAgentDefinition, match=rf"line {line} is not UTF-8: save the file as UTF-8\.$"
    ):
        load_agent_definition(path)


def test_an_instruction_and_a_script_beside_the_definition_are_used(beside, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (beside / "long.md").symlink_to("AGENTS.md")
    (beside / "script.yaml").write_text("replies: []")
    (beside / "x.yaml").write_text(
        "name: x\ndescription: x\ninstruction_file: long.md\nmodel: scripted:script.yaml\n"
    )

    definition = load_agent_definition(beside / "x.yaml")

    assert definition.instruction == "house rules"
    assert definition.model == f"scripted:{beside / 'script.yaml'}"
    assert definition.files == ()


@pytest.mark.parametrize("to", ["../../../secret.txt", "/etc/hostname", "..", "missing"])
def test_a_link_inside_a_skill_leads_nowhere(beside, to):
    (beside / "skills" / "stamp" / "link").symlink_to(to)

    with pytest.raises(InvalidAgentDefinition, match="skills: "):
        load_agent_definition(write(beside, "skills: [skills]"))


def test_a_link_to_a_file_of_the_definition_travels_as_the_file(beside):
    (beside / "skills" / "stamp" / "rules.md").symlink_to("../../AGENTS.md")

    own = DefinitionFiles(beside)
    own.add("skills", "folder")

    assert b"house rules" in [file.data for file in own.files]


def test_what_is_no_file_and_what_is_too_much_is_refused(beside, monkeypatch):
    os.mkfifo(beside / "skills" / "pipe")
    with pytest.raises(UnusableDefinitionFile, match="skills/pipe is not a file"):
        DefinitionFiles(beside).add("skills", "folder")
    (beside / "skills" / "pipe").unlink()

    monkeypatch.setattr(definition_files, "MAX_FILES", 2)
    own = DefinitionFiles(beside)
    own.add("skills", "folder")
    own.add("skills/stamp", "folder")  # the same files count once
    with pytest.raises(UnusableDefinitionFile, match=r"AGENTS\.md exceeds the limit"):
        own.add("AGENTS.md", "file")

    monkeypatch.setattr(definition_files, "MAX_BYTES", 20)
    with pytest.raises(UnusableDefinitionFile, match=r"SKILL\.md exceeds the limit"):
        DefinitionFiles(beside).add("skills", "folder")


def test_a_definition_keeps_what_it_was_loaded_with(beside):
    definition = load_agent_definition(write(beside, "memory: [AGENTS.md]"))
    (beside / "AGENTS.md").unlink()

    assert [file.data for file in definition.model_copy().files] == [b"house rules"]


def test_a_definition_that_is_not_from_a_file_cannot_name_files_beside_it():
    definition = AgentDefinition(name="x", description="x", instruction="x", memory=("AGENTS.md",))

    with pytest.raises(InvalidAgentDefinition, match="x names definition files"):
        _ = definition.files


def test_every_shipped_agent_honours_the_repositorys_own_file():
    assert {one.memory for one in load_agent_definitions().values()} == {("/workspace/AGENTS.md",)}
