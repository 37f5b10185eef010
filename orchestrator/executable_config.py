"""Which files of a workspace become code on the host by themselves.

A file of this table is executed, or names what is executed, when a person merely enters the folder,
opens it in an editor or an agent, or uses Git in it; when a push starts a build with the project's
secrets; or when another tool reads its configuration from the current folder, also one of ours. So
a job's change of such a file is landed only when a person says so.

Not in the table is what a person runs on purpose and can read before: `Makefile`, `package.json`,
`conftest.py`, `setup.py`, scripts, the code itself; and prose for agents (`AGENTS.md`), which is
text and no command. Who runs a job's code without reading it is not protected by this table.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

SHELL = "a shell or a version manager runs it when somebody enters the folder"
EDITOR = "an editor runs what it says when the folder is opened"
AGENT = "a coding agent runs what it says when it is started in the folder"
GIT = "Git runs what it says"
GIT_HOOK = "Git runs it, or what it names, at a commit, a checkout or a push"
BUILD = "the project's build service runs it, with the project's secrets, after a push"
TOOL = "a tool that is started in the folder obeys it"
DESKTOP = "a file manager obeys it when the folder is looked at"
OURS = "it is a configuration of fanout or of programs that read a .env file"
SHORT_NAME = "it is the short name of another file on a file system of Windows"
LINK = "it is a symlink that makes code of a file, or leads to one that is code"

_TABLE: Mapping[str, str] = {
    SHELL: """
        .envrc .direnv .autoenv* .bashrc .bash_aliases .bash_login .bash_logout .bash_profile
        .profile .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .inputrc
        .xinitrc .xprofile .xsession .pam_environment .tmux.conf .config/autostart .config/direnv
        .config/fish .config/systemd .ssh .tool-versions .asdfrc .mise .mise.toml .mise.*.toml
        .config/mise .config/mise.toml mise/config*.toml mise.toml mise.*.toml .rtx.toml .venv
    """,
    EDITOR: """
        .vscode *.code-workspace .vscode-server .vs .idea .fleet .zed .nova .theia .settings
        .externaltoolbuilders .helix *.sublime-project *.sublime-workspace .exrc .vimrc _vimrc
        .gvimrc .vim .lvimrc .local.vimrc .nvim .nvimrc .nvim.lua .lazy.lua .dir-locals.el
        .dir-locals-2.el .ycm_extra_conf.py .devcontainer .devcontainer.json .gitpod.yml
        .gitpod.dockerfile .rprofile rust-toolchain rust-toolchain.toml .cargo .mvn
    """,
    AGENT: """
        .claude .claude.json .cursor .mcp.json .codex .gemini .aider.conf.y*ml .continue .windsurf
        .kiro .roo .roomodes .cline .amazonq .opencode opencode.json opencode.jsonc .goose .junie
        .augment .qwen .crush .crush.json crush.json
    """,
    GIT: """
        .gitattributes .gitmodules .gitconfig .config/git .hg .hgrc .svn .bzr .jj .sl .fossil
        _darcs .pijul .gitignore_global .lfsconfig .gitremotes
    """,
    GIT_HOOK: """
        .husky .huskyrc* .githooks .git-hooks .hooks githooks git-hooks .pre-commit-config.yaml
        .pre-commit-config.yml prek.toml lefthook.* .lefthook* lefthook-local.* .config/lefthook*
        .overcommit.yml .lintstagedrc* lint-staged.config.* .simple-git-hooks.*
        simple-git-hooks.* captainhook.json
    """,
    BUILD: """
        .github/workflows .github/actions .forgejo/workflows .forgejo/actions
        .gitea/workflows .gitea/actions .gitlab-ci.y*ml .gitlab/ci* .circleci jenkinsfile
        jenkinsfile.* azure-pipelines.y*ml azure-pipelines .azure-pipelines .azuredevops
        .travis.y*ml .buildkite bitbucket-pipelines.y*ml .drone.* .woodpecker* appveyor.y*ml
        .appveyor.y*ml .cirrus.* cloudbuild.* .semaphore .teamcity buildspec.y*ml
        .readthedocs.y*ml netlify.toml
    """,
    TOOL: """
        .npmrc .yarnrc* .yarn .pnpmfile.* pnpmfile.* bunfig.toml .bunfig.toml .bundle .gemrc
        .irbrc .pryrc .pdbrc .gdbinit .lldbinit .ghci .ipython .jupyter ipython_config.py
        jupyter_*config.* sitecustomize.py usercustomize.py site-packages dist-packages pyvenv.cfg
        .curlrc .wgetrc
    """,
    DESKTOP: "desktop.ini .directory autorun.inf *.lnk *.scf",
    OURS: ".env .env.local fanout.toml .fanout config/fanout.toml config/agents .config/fanout",
}
"""Reason -> names and patterns, in lower case; a folder stands for everything in it. An entry with
a `/` matches names that follow each other. All match at any depth: a workspace may contain many
projects, and each folder can be opened by itself."""

_PATTERNS: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    (tuple(entry.split("/")), reason)
    for reason, entries in _TABLE.items()
    for entry in entries.split()
)
_EXACT = {steps: reason for steps, reason in _PATTERNS if not any("*" in step for step in steps)}
_GLOBS = tuple((steps, reason) for steps, reason in _PATTERNS if any("*" in step for step in steps))
_FIRST_STEPS = frozenset(steps[0] for steps, _ in _PATTERNS if len(steps) > 1)
_LONGEST = max(len(steps) for steps, _ in _PATTERNS)

_IGNORED_BY_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF],
)
"""Code points that a Mac's file system ignores in names, so that `.g\\u200cit` is `.git` there."""

_SEPARATOR = re.compile(r"[/\\]")
"""A file's name with a backslash is a path on Windows."""

_SHORT_NAME = re.compile(r"[^.~]{1,6}~\d+(\.[^.]{0,3})?")
"""A name as Windows gives it beside a long one: `VSCODE~1` is `.vscode` there."""


def plain(name: str) -> str:
    """Return a file's name as all file systems that may hold it compare it.

    Case, the forms of Unicode, code points that a Mac ignores, and what Windows drops (a stream's
    name, dots and spaces at the end) make no difference.
    """
    shown = unicodedata.normalize("NFKC", name.translate(_IGNORED_BY_HFS)).casefold()
    return unicodedata.normalize("NFKC", shown).partition(":")[0].rstrip(" .")


def is_git_data(name: str) -> bool:
    """Return whether a name is `.git` on some file system, or begins a path into it on Windows."""
    return any(plain(part) in {".git", "git~1"} for part in name.split("\\"))


def why_code(path: str) -> str | None:
    """Return why a path, relative to the workspace, becomes code by itself; None if it does not."""
    names = tuple(map(plain, _SEPARATOR.split(path)))
    for start in range(len(names)):
        if _SHORT_NAME.fullmatch(names[start]):
            return SHORT_NAME
        for length in range(1, _LONGEST + 1):
            steps = names[start : start + length]
            if len(steps) == length and (reason := _reason_of(steps)):
                return reason
    return None


def may_hold_code(path: str) -> bool:
    """Return whether a symlink at a path would make code of files that it leads to.

    The last name is in the table, or begins one of its entries: `.github -> ci` makes code of
    `ci/workflows`.
    """
    return plain(path.rpartition("/")[2]) in _FIRST_STEPS or why_code(path) is not None


def _reason_of(steps: tuple[str, ...]) -> str | None:
    found = _EXACT.get(steps)
    if found is not None:
        return found
    return next((reason for globs, reason in _GLOBS if _matches(steps, globs)), None)


def _matches(steps: tuple[str, ...], globs: tuple[str, ...]) -> bool:
    return len(steps) == len(globs) and all(map(fnmatchcase, steps, globs))


def link_target(path: str, target: str) -> str:
    """Return the path, relative to the workspace, at which a symlink's target is."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def is_bare_repository(names: Iterable[str]) -> bool:
    """Return whether Git takes a folder with these names for a repository and obeys its `config`.

    A `commondir` file says that objects and refs are elsewhere.
    """
    found = {plain(name) for name in names}
    return "head" in found and ({"objects", "refs"} <= found or "commondir" in found)


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that a path is in, from its own to the workspace, which is empty."""
    names = path.split("/")
    for count in reversed(range(len(names))):
        yield "/".join(names[:count])
