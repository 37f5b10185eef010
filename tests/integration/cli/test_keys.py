"""`fanout keys`, as an operator types it."""

from __future__ import annotations

import pytest

from fanout.orchestrator.cli.terminal.exit_codes import ExitCode
from tests.integration.cli.conftest import Fanout

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_key_is_shown_once_listed_without_it_and_revoked_by_its_name(fanout: Fanout) -> None:
    made = fanout("keys", "create", "ann", "--scope", "read", "--scope", "submit")
    other = fanout("keys", "create", "ops", "--scope", "admin", "--owner", "*", "--json")
    again = fanout("keys", "create", "ann", "--scope", "read")
    key = made.out.strip()

    assert (made.code, key[:3], len(key), made.out.count("\n")) == (ExitCode.DONE, "fo_", 59, 1)
    assert "Copy this key; it is not shown again:" in made.err
    assert other.json["key"].startswith(f"fo_{other.json['id']}_")
    assert "all owners of the tenant default" in other.err
    assert (again.code, again.out) == (ExitCode.USAGE, "")
    assert "fanout keys revoke ann" in again.err

    listed = fanout("keys", "ls", "--json")
    assert [(one["name"], one["scopes"], one["owner"]) for one in listed.json["keys"]] == [
        ("ann", ["submit", "read"], "ann"),
        ("ops", ["admin"], "*"),
    ]
    assert key.rpartition("_")[2] not in listed.out

    assert fanout("keys", "revoke", "ann").code == ExitCode.DONE
    assert fanout("keys", "revoke", other.json["id"]).code == ExitCode.DONE
    assert "revoked" in fanout("keys", "ls").out
    assert fanout("keys", "create", "ann", "--scope", "read").code == ExitCode.DONE
    audit = fanout("keys", "audit", "--json").json["entries"]
    assert [one["action"] for one in audit] == [
        *("key.create", "key.revoke", "key.revoke", "key.create", "key.create"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "ann"], "--scope submit --scope read"),
        (["create", "ann", "--scope", "aprove"], "Did you mean approve?"),
        (["create", "*", "--scope", "read"], "is not a valid name"),
        (["create", "ann", "--scope", "read", "--tenant", "*"], "needs --owner '*'"),
        (["create", "ann", "--scope", "read", "--expires", "soon"], "30d"),
        (["revoke", "nobody"], "fanout keys ls"),
    ],
)
def test_what_is_misspelt_makes_no_key(arguments: list[str], words: str, fanout: Fanout) -> None:
    ended = fanout("keys", *arguments)

    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert words in ended.err
    assert fanout("keys", "ls", "--json").json == {"keys": []}


@pytest.mark.parametrize(
    "given", [["operator"], ["ROOT"], ["ann", "--owner", "operator"], ["ann", "--owner", "Fanout"]]
)
def test_no_key_has_a_name_of_the_operator(fanout: Fanout, given: list[str]) -> None:
    refused = fanout("keys", "create", *given, "--scope", "read")

    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert "reserved for the operator" in refused.err


def test_what_a_key_may_choose_is_given_when_it_is_made_and_listed(fanout: Fanout) -> None:
    fanout("keys", "create", "plain", "--scope", "submit")
    chosen = ["--may-choose-model", "gemini-*", "--may-choose-verify", "make test"]
    chosen += ["--may-choose-host", "pypi.org", "--may-choose-limit", "timeout_seconds=3600"]
    fanout("keys", "create", "listed", "--scope", "submit", *chosen)
    fanout("keys", "create", "free", "--scope", "submit", "--may-choose-anything")
    wrong = fanout("keys", "create", "x", "--scope", "read", "--may-choose-limit", "hours=1")
    both = fanout("keys", "create", "x", "--scope", "read", *chosen, "--may-choose-anything")

    listed = fanout("keys", "ls", "--json").json["keys"]

    assert {one["name"]: one["may_choose"] for one in listed} == {
        "plain": "what agent definitions say",
        "listed": "models: gemini-*; verify: make test; hosts: pypi.org; "
        "limits: timeout_seconds=3600",
        "free": "anything",
    }
    assert "MAY CHOOSE" in fanout("keys", "ls").out
    assert (wrong.code, both.code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert "timeout_seconds=3600" in wrong.err
