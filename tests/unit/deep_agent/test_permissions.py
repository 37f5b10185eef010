"""Permissions: rules for files and commands, kept under every tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent import (
    Access,
    Backend,
    CompositeBackend,
    DictState,
    DirectoryBackend,
    LocalShellBackend,
    Permission,
    StateBackend,
    answers_message,
    create_deep_agent,
    pending_approvals,
)
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, make_state, scripted

NO_SECRETS = [Permission(mode="deny", paths=("/workspace/secrets",))]
FILES = {"a.txt": "find me", "secrets/key.txt": "find me", "secrets/deep/k": "find me"}


def in_directory(folder: Path) -> Backend:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return DirectoryBackend(folder)


def in_state(folder: Path) -> Backend:
    del folder
    files = {f"/workspace/{name}": text.encode() for name, text in FILES.items()}
    return StateBackend(make_state(files), search_root="/workspace")


def in_composite(folder: Path) -> Backend:
    routes = {"/workspace": in_directory(folder)}
    return CompositeBackend(StateBackend(DictState(), search_root="/workspace"), routes)


async def results(made: list[dict[str, Any]], **agent: Any) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = [*({"calls": [each]} for each in made), {"text": "x"}]
    return (await Run(scripted(replies), **agent).to_end()).results


EVERY_TOOL = [
    call("ls", path="/workspace"),
    call("glob", pattern="**/*"),
    call("grep", pattern="find me", output_mode="content"),
    call("grep", pattern="find me", path="/workspace/secrets"),
    call("grep", pattern="find me", path="/workspace/secrets/key.txt"),
    call("ls", path="/workspace/secrets"),
    call("glob", pattern="*", path="/workspace/secrets"),
    call("read_file", file_path="/workspace/secrets/key.txt"),
    call("read_file", file_path="/workspace/x/../secrets/key.txt"),
    call("write_file", file_path="/workspace/secrets/new", content="x"),
    call("edit_file", file_path="/workspace/secrets/key.txt", old_string="me", new_string="you"),
    call("delete_file", file_path="/workspace/secrets/key.txt"),
    call("delete_file", file_path="/workspace/secrets"),
]


@pytest.mark.parametrize("backend", [in_directory, in_state, in_composite])
async def test_denied_files_are_kept_from_every_tool(backend: Any, tmp_path: Path) -> None:
    found = await results(EVERY_TOOL, backend=backend(tmp_path), permissions=NO_SECRETS)

    assert [entry["path"] for entry in found[0]["entries"]] == ["/workspace/a.txt"]
    assert "secrets" not in str(found[:3])
    assert "a.txt" in str(found[2])
    for result in found[3:]:
        assert result["status"] == "error", result
        assert "find me" not in str(result)
    assert "A rule does not let you read /workspace/secrets/key.txt" in str(found[7])
    assert "A rule does not let you write" in str(found[9])


async def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    files = in_directory(tmp_path)
    (tmp_path / "way").symlink_to("secrets")
    (tmp_path / "file").symlink_to("secrets/key.txt")
    made = [
        call("read_file", file_path="/workspace/file"),
        call("read_file", file_path="/workspace/way/key.txt"),
        call("ls", path="/workspace/way"),
        call("grep", pattern="find me", path="/workspace/way"),
        call("edit_file", file_path="/workspace/file", old_string="me", new_string="you"),
        call("write_file", file_path="/workspace/way/new", content="x"),
        call("delete_file", file_path="/workspace/way/key.txt"),
    ]
    for result in await results(made, backend=files, permissions=NO_SECRETS):
        assert result["status"] == "error", result
        assert "find me" not in str(result)
    assert (tmp_path / "secrets/key.txt").read_text() == "find me"
    assert not (tmp_path / "secrets/new").exists()


async def test_a_directory_with_something_denied_in_it_is_not_deleted(tmp_path: Path) -> None:
    files = in_directory(tmp_path)
    (tmp_path / "secrets/.git").mkdir()
    (tmp_path / "secrets/.git/config").write_text("x")
    rules = [Permission(mode="deny", paths=("**/.git",), operations=("write",))]
    (result,) = await results(
        [call("delete_file", file_path="/workspace/secrets")], backend=files, permissions=rules
    )
    assert result["status"] == "error"
    assert (tmp_path / "secrets/key.txt").exists()


async def test_the_first_rule_that_matches_decides_also_by_operation_and_predicate(
    tmp_path: Path,
) -> None:
    def is_key(access: Access) -> bool:
        return access.path.endswith("key.txt")

    rules = [
        Permission(mode="deny", when=is_key),
        Permission(mode="allow", paths=("/workspace/secrets/**",), operations=("read",)),
        Permission(mode="deny", paths=("/workspace/secrets/**",)),
    ]
    made = [
        call("read_file", file_path="/workspace/secrets/key.txt"),
        call("read_file", file_path="/workspace/secrets/deep/k"),
        call("write_file", file_path="/workspace/secrets/new", content="x"),
        call("write_file", file_path="/workspace/new", content="x"),
    ]
    found = await results(made, backend=in_directory(tmp_path), permissions=rules)
    assert [result["status"] for result in found] == ["error", "success", "error", "success"]


async def asked(run: Run, decision: Any, message: str = "") -> list[dict[str, Any]]:
    """Answer the one open question, and return what the run's tools answered then."""
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    (pending,) = pending_approvals(session.events)
    assert "A rule wants a person to be asked" in pending.hint
    answer = ApprovalAnswer(decision=decision, message=message)
    run.events.clear()
    await run.answer(answers_message([(pending, answer)]))
    return run.results


ASK_WRITES = [Permission(mode="ask", operations=("write",))]


async def test_a_question_is_asked_before_a_file_changes_and_holds_for_this_call_only(
    tmp_path: Path,
) -> None:
    write = call("write_file", file_path="/workspace/new", content="x")
    other = call("write_file", file_path="/workspace/other", content="x")
    replies: list[dict[str, Any]] = [{"calls": [write]}, {"calls": [other]}, {"text": "x"}]
    run = Run(scripted(replies), backend=in_directory(tmp_path), permissions=ASK_WRITES)
    await run.to_end()
    assert run.results[0]["status"] == "waiting_for_approval"
    assert not (tmp_path / "new").exists()

    found = await asked(run, "approve")
    assert (tmp_path / "new").read_text() == "x"
    assert found[-1]["status"] == "waiting_for_approval"
    found = await asked(run, "reject", "not there")
    assert "not there" in found[0]["message"]
    assert not (tmp_path / "other").exists()


async def test_a_search_that_looks_into_a_file_with_a_question_asks_it(tmp_path: Path) -> None:
    rules = [Permission(mode="ask", paths=("/workspace/secrets",), operations=("read",))]
    replies: list[dict[str, Any]] = [{"calls": [call("grep", pattern="find me")]}, {"text": "x"}]
    run = Run(scripted(replies), backend=in_directory(tmp_path), permissions=rules)
    await run.to_end()
    found = await asked(run, "approve")
    assert "secrets/key.txt" in found[0]["result"]


@pytest.mark.parametrize("own", [(), [Permission(mode="allow", paths=("/**",))]])
async def test_children_have_their_parents_rules_and_can_only_be_stricter(
    own: Any, tmp_path: Path
) -> None:
    made = [
        call("read_file", file_path="/workspace/secrets/key.txt"),
        call("write_file", file_path="/workspace/secrets/new", content="x"),
        call("read_file", file_path="/workspace/a.txt"),
    ]
    model = scripted([*({"calls": [each]} for each in made), {"text": "done"}], "worker")
    child = {"name": "worker", "description": "Works.", "model": model, "permissions": own}

    asks = call("task", description="do", subagent_type="worker")
    run = Run(
        scripted([{"calls": [asks]}, {"text": "x"}]),
        subagents=[child],
        backend=in_directory(tmp_path),
        permissions=NO_SECRETS,
    )
    await run.to_end()
    assert run.results[0]["status"] == "success"
    assert run.results[0]["files_modified"] == []
    assert not (tmp_path / "secrets/new").exists()


async def test_a_childs_question_reaches_the_person(tmp_path: Path) -> None:
    write = call("write_file", file_path="/workspace/new", content="x")
    model = scripted([{"calls": [write]}, {"text": "written"}], "worker")
    child = {"name": "worker", "description": "Works.", "model": model}
    asks = call("task", description="do", subagent_type="worker")
    run = Run(
        scripted([{"calls": [asks]}, {"text": "x"}]),
        subagents=[child],
        backend=in_directory(tmp_path),
        permissions=ASK_WRITES,
    )
    await run.to_end()
    assert not (tmp_path / "new").exists()
    await asked(run, "approve")
    assert (tmp_path / "new").read_text() == "x"


def test_rules_beside_a_shell_need_a_word_about_commands(tmp_path: Path) -> None:
    shell = LocalShellBackend(tmp_path)
    model = scripted([{"text": "x"}])
    with pytest.raises(ValueError, match="do not keep a shell from files"):
        create_deep_agent(model, backend=shell, permissions=NO_SECRETS)
    with pytest.raises(ValueError, match="do not keep a shell from files"):
        create_deep_agent(model, execution="local", permissions=NO_SECRETS)
    create_deep_agent(
        model, backend=shell, permissions=NO_SECRETS, built_in_tools=["read_file", "ls"]
    )


@pytest.mark.parametrize("mode", ["allow", "deny", "ask"])
async def test_commands_are_allowed_denied_or_asked_for(mode: Any, tmp_path: Path) -> None:
    secrets = [Permission(mode="deny", paths=("**/secrets",))]
    rules = [*secrets, Permission(mode=mode, operations=("execute",))]
    replies: list[dict[str, Any]] = [
        {"calls": [call("execute", command="echo ran > ran")]},
        {"text": "x"},
    ]
    run = Run(scripted(replies), backend=LocalShellBackend(tmp_path), permissions=rules)
    await run.to_end()
    assert (tmp_path / "ran").exists() == (mode == "allow")
    if mode == "ask":
        await asked(run, "approve")
        assert (tmp_path / "ran").exists()
    if mode == "deny":
        assert "execute" in str(run.results[0])


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/a/secrets", "/a/secrets", True),
        ("/a/secrets", "/a/secrets/deep/key", True),
        ("/a/secrets", "/a/secrets2", False),
        ("/a/secrets/**", "/a/secrets", True),
        ("/a/secrets/**", "/a/secrets/.hidden", True),
        ("/a/secrets/**", "/a/secrets2/x", False),
        ("**/.env", "/.env", True),
        ("**/.env", "/a/b/.env", True),
        ("**/.env", "/a/b/.env.example", False),
        ("/a/*.{key,pem}", "/a/x.pem", True),
        ("/a/*.{key,pem}", "/a/b/x.pem", False),
        ("/a/[x]", "/a/[x]", False),
    ],
)
def test_a_pattern_holds_for_what_it_names_and_everything_in_it(
    pattern: str, path: str, matches: bool
) -> None:
    rule = Permission(mode="deny", paths=(pattern,))
    assert rule.matches(Access("read", path)) == matches


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"mode": "maybe"}, "'allow', 'deny' or 'ask'"),
        ({"mode": "deny", "paths": ["secrets"]}, "begin with / or"),
        ({"mode": "deny", "paths": ["/a/../b"]}, "without . and .."),
        ({"mode": "deny", "paths": ["/a"], "operations": ["execute"]}, "a command names no path"),
        ({"mode": "deny", "path": "/a"}, "Extra inputs"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Permission.model_validate(rule)
