import pytest

from fanout.orchestrator.cli.commands.up import announce_sandbox
from tests.builders import make_worker


def test_where_nothing_isolates_the_workers_own_reason_is_told(capsys: pytest.CaptureFixture[str]):
    reason = "fanout/python:latest is not on the Docker engine: build it."
    announce_sandbox([make_worker(why_local=reason), make_worker("w2", sandbox="docker")])

    told = capsys.readouterr().err
    assert f"machine. {reason} That isolates nothing" in told
    assert "answers" not in told


def test_where_all_are_isolated_it_says_by_what(capsys: pytest.CaptureFixture[str]):
    announce_sandbox([make_worker(sandbox="docker")])

    assert capsys.readouterr().err == "Sandbox: docker\n"
