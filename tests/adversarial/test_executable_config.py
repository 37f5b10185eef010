"""What a job changes and what becomes code on the host by itself is held back."""

import asyncio
import os
import subprocess
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

from fanout.orchestrator.executable_config import why_code
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.workspace import Workspace
from tests.architecture.sources import REPOSITORY
from tests.bundles import BundleBuilder, tree_of

TABLE = REPOSITORY / "orchestrator/executable_config.toml"
CODE = b"touch /tmp/pwned\n"


async def landed(
    root: Path, bundle: BundleBuilder, *, check: bool = False, include: bool = False
) -> MergeReport:
    with ExitStack() as stack:
        opened = await asyncio.to_thread(stack.enter_context, ChangeBundle.open(bundle.build()))
        return await merge(Workspace(root), opened, check=check, include_executable_config=include)


def held(report: MergeReport) -> set[str]:
    return {change.path for change in report.held_back}


def adding(*paths: str) -> BundleBuilder:
    bundle = BundleBuilder()
    for path in paths:
        bundle.add(path, bundle.file(CODE))
    return bundle


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


BECOMES_CODE = """
    .envrc sub/.envrc .ENVRC .env\N{ZERO WIDTH JOINER}rc .\N{FULLWIDTH LATIN SMALL LETTER E}nvrc
    .envrc. .envrc::$DATA ENVRC~1 .vscode/tasks.json .VSCode/launch.json VSCODE~1/settings.json
    deep/a/b/.vscode/settings.json my.code-workspace .idea/workspace.xml .idea/runConfigurations/a
    .exrc .nvim.lua .vimrc .lvimrc .dir-locals.el p.sublime-project .devcontainer/devcontainer.json
    .zed/tasks.json .helix/languages.toml .cursor/mcp.json .claude/settings.json .mcp.json
    .husky/pre-commit .githooks/post-checkout .pre-commit-config.yaml lefthook.yml .lefthook.toml
    .github/workflows/ci.yml .github/actions/a/action.yml sub/.github/workflows/x.yml
    .gitlab-ci.yml .circleci/config.yml Jenkinsfile azure-pipelines.yml .travis.yml
    .buildkite/pipeline.yml bitbucket-pipelines.yml .env sub/.env config/fanout.toml fanout.toml
    config/agents/coordinator.yaml .gitattributes sub/.gitattributes .gitmodules .gitconfig
    .npmrc .yarnrc.yml .yarn/releases/yarn.cjs .pnpmfile.cjs .mise.toml mise.toml .tool-versions
    .cargo/config.toml .bashrc .ssh/authorized_keys .hg/hgrc sitecustomize.py .venv/bin/python
    lib/site-packages/evil.pth .Rprofile .gdbinit desktop.ini .directory .config/git/config
    .vscode\\tasks.json .ocamlinit .iex.exs .octaverc .Renviron .RData startup.m ansible.cfg tools/bazel
    .bazelrc hie.yaml Directory.Build.props .github/hooks/a.json .pi/x .kilocode/mcp.json .factory/x
    .builds/a.yml .tekton/push.yaml .zuul.yaml .harness/pipeline.yaml bin/hermit.hcl a/bin/hermit.hcl
    Directory.Build.targets devenv.nix .clinerules/hooks/x .buckconfig .luarc.json .flox/env/x
""".split()  # noqa: SIM905 - a list of 70 names

RUN_ON_PURPOSE = """
    Makefile package.json conftest.py setup.py src/main.py README.md AGENTS.md .env.example
    .gitignore .dockerignore .editorconfig .github/ISSUE_TEMPLATE/bug.md docs/vscode/tasks.json
    model.pth hooks/useState.ts config/settings.toml environment.yml HEAD objects/a refs/b
    bin/tool tools/bazel.md hooks.json .clinerules/style.md .prettierrc flake.nix
    envrc vscode/settings.json Dockerfile docker-compose.yml .python-version
""".split()  # noqa: SIM905


@pytest.mark.parametrize("path", BECOMES_CODE)
async def test_a_file_that_becomes_code_by_itself_is_held_back(tmp_path, path):
    report = await landed(tmp_path, adding(path))

    assert held(report) == {path}
    assert report.held_back[0].reason
    assert not report.complete
    assert tree_of(tmp_path) == {}


def test_each_entry_of_the_table_has_its_source_and_no_name_is_there_twice():
    table = tomllib.loads(TABLE.read_text())
    entries = [entry for group in table.values() for entry in group["entries"]]
    names = [name for entry in entries for name in entry["names"].split()]

    assert all(group["reason"] for group in table.values())
    assert all(entry["source"].startswith(("https://", "docs/")) for entry in entries)
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize("path", RUN_ON_PURPOSE)
def test_a_file_that_a_person_runs_on_purpose_lands(path):
    assert why_code(path) is None


async def test_the_other_changes_of_the_job_land_and_a_rehearsal_foretells_it(tmp_path):
    bundle = adding(".envrc", "src/main.py")

    foretold = await landed(tmp_path, bundle, check=True)
    report = await landed(tmp_path, bundle)

    assert report == foretold
    assert held(report) == {".envrc"}
    assert [merged.path for merged in report.applied] == ["src/main.py"]


async def test_what_was_held_back_lands_when_a_person_says_so_and_then_is_there(tmp_path):
    bundle = adding(".envrc", "src/main.py")
    await landed(tmp_path, bundle)

    report = await landed(tmp_path, bundle, include=True)
    again = await landed(tmp_path, bundle)

    assert report.complete
    assert (tmp_path / ".envrc").read_bytes() == CODE
    assert again.complete
    assert {merged.how for merged in again.applied} == {"already"}


async def test_a_person_s_word_does_not_open_gits_own_data(tmp_path):
    paths = [".git/hooks/post-checkout", "sub/.GIT/config", "GIT~1/config", ".git\\hooks\\x"]
    report = await landed(tmp_path, adding(*paths, ".g\N{ZERO WIDTH NON-JOINER}it"), include=True)

    assert len(report.refused) == 5
    assert tree_of(tmp_path) == {}


async def test_both_paths_of_a_rename_count(tmp_path):
    (tmp_path / "env.sh").write_bytes(CODE)
    (tmp_path / ".envrc").write_bytes(b"mine")
    bundle = BundleBuilder()
    bundle.rename("env.sh", "sub/.envrc", bundle.file(CODE), bundle.file(CODE))
    bundle.rename(".envrc", "old.sh", bundle.file(b"mine"), bundle.file(b"mine"))

    report = await landed(tmp_path, bundle)

    assert held(report) == {"sub/.envrc", "old.sh"}
    assert set(tree_of(tmp_path)) == {"env.sh", ".envrc"}


async def test_a_mode_a_content_and_a_removal_count(tmp_path):
    (tmp_path / ".husky").mkdir()
    for name in ("pre-commit", "pre-push", "post-merge"):
        (tmp_path / ".husky" / name).write_bytes(b"old")
    before = tree_of(tmp_path)
    bundle = BundleBuilder().edit(".husky/pre-push", b"old", CODE)
    bundle.change(".husky/pre-commit", bundle.file(b"old"), bundle.file(b"old", 0o755))
    bundle.delete(".husky/post-merge", bundle.file(b"old"))

    report = await landed(tmp_path, bundle)

    assert len(held(report)) == 3
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (".github", "ci"),
        ("sub/.config", "conf"),
        ("config", "c"),
        ("tasks", ".vscode"),
        ("a/b", "../.envrc"),
        (".vscode", "editor"),
        ("ci", ".github/workflows"),
    ],
)
async def test_a_symlink_into_or_in_place_of_such_a_file_is_held_back(tmp_path, path, target):
    bundle = BundleBuilder()

    report = await landed(tmp_path, bundle.add(path, bundle.link(target)))

    assert held(report) == {path}


async def test_a_folder_that_is_replaced_by_a_symlink_is_held_back(tmp_path):
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/settings.json").write_bytes(b"{}")
    bundle = adding("editor/settings.json")
    bundle.delete(".vscode/settings.json", bundle.file(b"{}"))
    bundle.add(".vscode", bundle.link("editor"))

    report = await landed(tmp_path, bundle)

    assert held(report) == {".vscode", ".vscode/settings.json"}
    assert not (tmp_path / ".vscode").is_symlink()


async def test_the_target_of_a_persons_own_symlink_becomes_code_too(tmp_path):
    (tmp_path / "editor").mkdir()
    (tmp_path / ".vscode").symlink_to("editor")
    (tmp_path / "env.sh").write_bytes(b"old")
    (tmp_path / ".envrc").symlink_to("env.sh")

    report = await landed(
        tmp_path, adding("editor/tasks.json").edit("env.sh", b"old", CODE).edit("x", b"", b"")
    )

    assert held(report) == {"editor/tasks.json", "env.sh"}


@pytest.mark.parametrize(
    ("link", "target", "lands", "stays"),
    [
        ("web/.vscode", "../editor", "editor/readme", "editor/tasks.json"),
        ("a/b/c/.envrc", "../../../env.sh", "env.txt", "env.sh"),
        ("deep/.github", "../ci", "ci/notes.md", "ci/workflows/x.yml"),
        ("bin", "scripts", "scripts/run.py", "scripts/hermit.hcl"),
    ],
)
async def test_a_symlink_at_any_depth_makes_code_of_what_its_path_tells(
    tmp_path, link, target, lands, stays
):
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(target)
    for path in (lands, stays):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    everything = target.endswith("editor")

    report = await landed(tmp_path, adding(lands, stays))

    assert held(report) == ({lands, stays} if everything else {stays})


CALLS = {
    ".envrc": 'source_env scripts/env\n. "$PWD/tools/lib.sh"\ndotenv_if_exists conf/later.env\n',
    "scripts/env": 'PATH_add bin\npython3 "$(dirname "$0")/deep.py" --quick\n',
    "tools/lib.sh": "echo\n",
    "scripts/deep.py": "print()\n",
    "sub/.husky/pre-commit": "cd sub && node scripts/lint.mjs data.json\n",
    "sub/scripts/lint.mjs": "//\n",
    "sub/data.json": "{}\n",
    ".claude/settings.json": '{"hooks": {"Stop": [{"command": "$CLAUDE_PROJECT_DIR/tools/stop.rb"}]}}',
    "tools/stop.rb": "#\n",
    ".github/workflows/ci.yml": "run: python tests/run_all.py\n",
    "tests/run_all.py": "#\n",
    "nix/.envrc": "use flake\n",
    "README.md": "read `.envrc` and tools/other.py\n",
    "tools/other.py": "#\n",
}


async def test_what_an_allowed_configuration_calls_is_held_back(tmp_path):
    for path, text in CALLS.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    bundle = BundleBuilder()
    for path in CALLS.keys() - {".envrc", ".claude/settings.json", "sub/.husky/pre-commit"}:
        bundle.edit(path, CALLS[path].encode(), CODE)
    bundle.add("conf/later.env", bundle.file(CODE)).add("nix/flake.nix", bundle.file(CODE))

    report = await landed(tmp_path, bundle)

    called = {"scripts/env", "tools/lib.sh", "conf/later.env", "scripts/deep.py", "tools/stop.rb"}
    called |= {"sub/scripts/lint.mjs", "nix/flake.nix"}
    assert held(report) == called | {".github/workflows/ci.yml", "nix/.envrc"}
    reasons = {change.path: change.reason for change in report.held_back}
    assert reasons["scripts/deep.py"].startswith("used by .envrc: a shell")


async def test_thousands_of_installed_files_hide_no_configuration(tmp_path):
    for number in range(600):
        (tmp_path / f".husky/a/{number}").mkdir(parents=True)
        (tmp_path / f".husky/a/{number}/x").touch()
        (tmp_path / f".venv/{number}").mkdir(parents=True)
        (tmp_path / f".venv/{number}/x.py").write_text("src/main.py")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode/tasks.json").write_text('{"command": "tools/build.sh"}')

    report = await landed(tmp_path, adding("tools/build.sh", "src/main.py"))

    assert held(report) == {"tools/build.sh"}


async def test_a_configuration_that_is_no_file_or_very_large_delays_nothing(tmp_path):
    os.mkfifo(tmp_path / ".envrc")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.envrc").write_bytes(b"a/b.sh " * 1_000_000)

    report = await landed(tmp_path, adding("src/main.py"))

    assert report.complete


@pytest.mark.parametrize(
    ("before", "after", "reveals"),
    [
        (b"secret.txt\n*.log\n", b"*.log\n", True),
        (b"secret.txt\n", b"secret.txt\n!secret.txt\n", True),
        (b"secret.txt\n", b"", True),
        (b"secret.txt\n", b"secret.txt\nbuild/\n!build\n", False),
        (b"secret.txt\nnothing-here\n", b"secret.txt\n", False),
        (b"secret.txt\n", b"secret.*\n", False),
    ],
)
@pytest.mark.parametrize("place", ["", "sub/"])
async def test_ignore_rules_that_would_show_more_to_later_jobs_are_held_back(
    tmp_path, before, after, reveals, place
):
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    (tmp_path / f"{place}.gitignore").write_bytes(before)
    (tmp_path / f"{place}secret.txt").write_text("mine")

    report = await landed(tmp_path, BundleBuilder().edit(f"{place}.gitignore", before, after))

    assert held(report) == ({f"{place}.gitignore"} if reveals else set())
    if reveals:
        assert report.held_back[0].reason.endswith(f"{place}secret.txt")


async def test_ignore_rules_are_judged_together_and_by_what_is_ignored_otherwise(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / ".git/info/exclude").write_text("own.txt\n")
    (tmp_path / "private").mkdir()
    for name in ("own.txt", "private/key"):
        (tmp_path / name).write_text("mine")
    (tmp_path / ".gitignore").write_bytes(b"private/\nown.txt\n")
    bundle = BundleBuilder().edit(".gitignore", b"private/\nown.txt\n", b"private/*\n")

    alone = await landed(tmp_path, bundle, check=True)
    bundle.add("private/.gitignore", bundle.file(b"!key\n"))
    together = await landed(tmp_path, bundle)

    assert alone.complete
    assert held(together) == {".gitignore", "private/.gitignore"}


async def test_removed_and_linked_ignore_rules_count(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "secret.txt").write_text("mine")
    (tmp_path / ".gitignore").write_bytes(b"secret.txt\n")
    bundle = BundleBuilder()
    bundle.delete(".gitignore", bundle.file(b"secret.txt\n"))

    assert held(await landed(tmp_path, bundle)) == {".gitignore"}


async def test_ignore_rules_of_a_folder_in_no_repository_land(tmp_path):
    (tmp_path / ".gitignore").write_bytes(b"secret.txt\n")
    (tmp_path / "secret.txt").write_text("mine")

    report = await landed(tmp_path, BundleBuilder().edit(".gitignore", b"secret.txt\n", b""))

    assert report.complete


CONFIG = b"""[core]
	repositoryformatversion = 0
	bare = false
	worktree = ..
	fsmonitor = "touch pwned; false"
"""
BARE = {"HEAD": b"ref: refs/heads/main\n", "config": CONFIG}


def bare(folder: str, *names: str) -> BundleBuilder:
    bundle = BundleBuilder()
    for name in names:
        bundle.add(f"{folder}/{name}", bundle.file(BARE.get(name, b"x")))
    return bundle


def fsmonitor_runs(folder: Path) -> bool:
    for command in (["status"], ["log"], ["ls-files"]):
        subprocess.run(["git", *command], cwd=folder, capture_output=True, check=False)
    return (folder.parent / "pwned").exists()


async def test_a_bare_repository_is_held_back_whole(tmp_path):
    repository = bare("docs", "HEAD", "config", "objects/a", "refs/heads/b", "index")
    await landed(tmp_path / ".", repository, check=True)

    report = await landed(tmp_path, repository)

    assert len(held(report)) == 5
    assert not (tmp_path / "docs").exists()


async def test_a_bare_repository_in_parts_is_not_completed(tmp_path):
    first = await landed(tmp_path, bare("docs", "HEAD", "config"))
    second = await landed(tmp_path, bare("docs", "objects/a"))
    third = await landed(tmp_path, bare("docs", "refs/heads/b"))

    assert first.complete
    assert second.complete
    assert held(third) == {"docs/refs/heads/b"}
    assert not fsmonitor_runs(tmp_path / "docs")


async def test_a_bare_repository_of_empty_folders_and_other_case_is_held_back(tmp_path):
    bundle = bare("docs", "HEAD", "config")
    for name in ("Objects", "REFS"):
        bundle.add(f"docs/{name}", bundle.directory())

    assert len(held(await landed(tmp_path, bundle))) == 4


async def test_a_repository_whose_objects_are_elsewhere_is_held_back(tmp_path):
    report = await landed(tmp_path, bare("docs", "HEAD", "commondir", "config"))

    assert len(held(report)) == 3


async def test_the_configuration_of_a_bare_repository_that_exists_is_held_back(tmp_path):
    git(tmp_path, "init", "-q", "--bare", "fixture.git")
    config = (tmp_path / "fixture.git/config").read_bytes()
    bundle = adding("fixture.git/hooks/post-update")
    bundle.edit("fixture.git/config", config, config + BARE["config"])

    report = await landed(tmp_path, bundle)

    assert held(report) == {"fixture.git/hooks/post-update", "fixture.git/config"}
    assert not fsmonitor_runs(tmp_path / "fixture.git")


async def test_what_gits_configuration_names_is_held_back(tmp_path):
    git(tmp_path, "init", "-q")
    for name, value in {
        "core.hooksPath": "tools/hooks",
        "filter.format.clean": "python tools/clean.py --fast",
        "include.path": "../shared.gitconfig",
        "core.fsmonitor": "./watch",
        "alias.st": "status",
    }.items():
        git(tmp_path, "config", name, value)
    paths = {"tools/hooks/pre-commit", "tools/clean.py", "shared.gitconfig", "watch"}

    report = await landed(tmp_path, adding(*paths, "tools/other.py", "status"))

    assert held(report) == paths


async def test_hooks_of_an_enclosing_repository_are_held_back(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.hooksPath", "sub/hooks")
    (tmp_path / "sub").mkdir()

    report = await landed(tmp_path / "sub", adding("hooks/pre-commit", "hook.py"))

    assert held(report) == {"hooks/pre-commit"}


async def test_the_attack_works_where_a_person_lets_it(tmp_path):
    """Shows that the tests above would see it."""
    bundle = bare("docs", "HEAD", "config")
    bundle.add("docs/objects", bundle.directory()).add("docs/refs", bundle.directory())

    await landed(tmp_path, bundle, include=True)

    assert await asyncio.to_thread(fsmonitor_runs, tmp_path / "docs")
