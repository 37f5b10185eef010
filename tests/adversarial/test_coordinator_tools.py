"""The coordinator's file tools see what a job may see, and change what a merge may change."""

import subprocess
from pathlib import Path

import pytest

from orchestrator.configuration.agent_definitions import AgentDefinition
from orchestrator.coordinator.workspace_files import workspace_files
from orchestrator.deep_agent import Shell, ToolMistake
from orchestrator.deep_agent.tools.files import Files
from orchestrator.workspace.workspace import Workspace
from tests.bundles import tree_of

CANARY = "the-secret-word"
DEFINITION = AgentDefinition(name="coordinator", description="x", instruction="x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    files = {
        ".gitignore": ".env\nprivate/\n*.log\n",
        ".env": CANARY,
        "private/key": CANARY,
        "run.log": CANARY,
        "src/main.py": "print()\n",
        "src/debug.log": CANARY,
        ".vscode/settings.json": "{}\n",
        "plain/a": "a\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / ".git/credentials").write_text(CANARY)
    for name, target in {
        "to_env": ".env",
        "to_private": "private",
        "to_git": ".git",
        "to_editor": ".vscode",
        "to_absolute": str(root / ".env"),
        "src/up": "../.git/config",
    }.items():
        (root / name).symlink_to(target)
    return root


@pytest.fixture
def files(folder: Path) -> Files:
    return Files(workspace_files(DEFINITION, Workspace(folder)))


HIDDEN = """
    .env private/key run.log src/debug.log .git/config .git/HEAD to_env to_private/key
    to_git/credentials to_git/config to_absolute src/up private/../.env .git
""".split()  # noqa: SIM905


def test_the_coordinator_has_no_shell_on_the_host(folder):
    assert not isinstance(workspace_files(DEFINITION, Workspace(folder)), Shell)


@pytest.mark.parametrize("path", HIDDEN)
async def test_what_stays_at_home_is_not_read(files, path):
    with pytest.raises(ToolMistake) as refusal:
        await files.read(f"/workspace/{path}")

    assert CANARY not in str(refusal.value)


async def test_what_stays_at_home_is_neither_listed_nor_found(files):
    shown = {entry.path for entry in (await files.ls_info("/workspace")).entries}
    inside = {entry.path for entry in (await files.ls_info("/workspace/src")).entries}
    globbed = {entry.path for entry in (await files.glob_info("**/{*,.*}")).entries}
    found = await files.grep_raw(CANARY)
    named = [await files.grep_raw(CANARY, glob=name) for name in (".env", "*", "**/.*", "*.log")]

    assert not {f"/workspace/{path}" for path in HIDDEN if "/" not in path[:3]} & (
        shown - {f"/workspace/{link}" for link in ("to_env", "to_absolute")}
    )
    assert "/workspace/src/debug.log" not in inside | globbed
    assert "/workspace/src/main.py" in inside & globbed
    assert {result.text for result in (found, *named)} == {"No matches found."}


@pytest.mark.parametrize("path", ["/workspace/.env", "/workspace/private", "/workspace/to_git"])
async def test_a_search_that_starts_in_what_stays_at_home_is_refused(files, path):
    with pytest.raises(ToolMistake):
        await files.grep_raw(CANARY, path)
    with pytest.raises(ToolMistake):
        await files.ls_info(path)


CODE = """
    .git/hooks/pre-commit .git/config .GIT/config sub/.git to_git/hooks/pre-commit
    .envrc .vscode/tasks.json .VSCode/tasks.json to_editor/tasks.json .github/workflows/ci.yml
    .husky/pre-commit src/.envrc .npmrc .gitattributes config/fanout.toml new/.vscode/tasks.json
    private/new .env to_env
""".split()  # noqa: SIM905


@pytest.mark.parametrize("path", CODE)
async def test_what_becomes_code_is_not_written(files, folder, path):
    before = tree_of(folder)

    with pytest.raises(ToolMistake):
        await files.write(f"/workspace/{path}", "touch pwned")
    [upload] = await files.upload_files([(f"/workspace/{path}", b"touch pwned")])

    assert upload.error
    assert tree_of(folder) == before


async def test_a_refusal_is_one_sentence_that_says_what_to_do(files):
    with pytest.raises(ToolMistake, match=r"an editor runs what it says.*Have a task change it"):
        await files.write("/workspace/.vscode/tasks.json", "{}")


@pytest.mark.parametrize("path", [".vscode/settings.json", "to_editor/settings.json"])
async def test_what_becomes_code_is_read_but_neither_edited_nor_deleted(files, folder, path):
    assert "{}" in (await files.read(f"/workspace/{path}")).content
    with pytest.raises(ToolMistake):
        await files.edit(f"/workspace/{path}", "{}", "[]")
    with pytest.raises(ToolMistake):
        await files.delete(f"/workspace/{path}")

    assert (folder / ".vscode/settings.json").read_text() == "{}\n"


@pytest.mark.parametrize("path", [".git", ".vscode", "private", ".env", "src"])
async def test_a_folder_with_such_files_is_not_deleted(files, folder, path):
    with pytest.raises(ToolMistake):
        await files.delete(f"/workspace/{path}")

    assert (folder / path).exists()
    assert (folder / "src/debug.log").exists()


async def test_a_bare_repository_is_not_completed_by_hand(files, folder):
    await files.write("/workspace/plain/HEAD", "ref: refs/heads/main\n")
    await files.write("/workspace/plain/config", "[core]\nfsmonitor = touch pwned\n")
    await files.write("/workspace/plain/objects/x", "")

    with pytest.raises(ToolMistake, match="repository"):
        await files.write("/workspace/plain/refs/x", "")
    assert not (folder / "plain/refs").exists()


async def test_ordinary_files_are_written_read_edited_found_and_deleted(files, folder):
    await files.write("/workspace/src/new.py", "one = 1\n")
    assert "one" in (await files.read("/workspace/src/new.py")).content
    await files.edit("/workspace/src/new.py", "one", "two")
    assert (await files.grep_raw("two = 1")).text == "/workspace/src/new.py"
    assert "/workspace/src/new.py" in {e.path for e in (await files.glob_info("src/*.py")).entries}
    (folder / "src/from_a_job.py").write_text("three = 3\n")
    assert "three" in (await files.read("/workspace/src/from_a_job.py")).content
    await files.delete("/workspace/src/new.py")
    await files.delete("/workspace/plain")

    assert not (folder / "src/new.py").exists()
    assert not (folder / "plain").exists()


async def test_a_plain_folder_follows_the_same_rules(tmp_path):
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/x").write_text(CANARY)
    (tmp_path / "a").write_text("a")
    files = Files(workspace_files(DEFINITION, Workspace(tmp_path)))

    assert [entry.path for entry in (await files.ls_info("/workspace")).entries] == ["/workspace/a"]
    with pytest.raises(ToolMistake):
        await files.read("/workspace/node_modules/x")
    with pytest.raises(ToolMistake):
        await files.write("/workspace/.envrc", "touch pwned")


async def test_nothing_is_shown_when_git_cannot_say_what_it_ignores(folder):
    (folder / ".git/index").write_bytes(b"broken")
    files = Files(workspace_files(DEFINITION, Workspace(folder)))

    assert (await files.ls_info("/workspace")).entries == ()
    with pytest.raises(ToolMistake, match="not known what Git ignores"):
        await files.read("/workspace/src/main.py")


KEY = "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"


async def test_secrets_stay_at_home_by_name_and_by_content_unless_a_person_includes_them(tmp_path):
    (tmp_path / ".netrc").write_text("machine x password y\n")
    (tmp_path / "notes.txt").write_text(KEY)
    workspace = Workspace(tmp_path)
    files = Files(workspace_files(DEFINITION, workspace))

    for name in (".netrc", "notes.txt"):
        with pytest.raises(ToolMistake, match="stays with the person"):
            await files.read(f"/workspace/{name}")
    with pytest.raises(ToolMistake):
        await files.edit("/workspace/notes.txt", "KEY", "key")
    for text in ("password", "MIIE"):
        assert (await files.grep_raw(text)).text == "No matches found."

    workspace.included = frozenset({"notes.txt"})
    assert (
        "MIIE"
        in (
            await Files(workspace_files(DEFINITION, workspace)).read("/workspace/notes.txt")
        ).content
    )
