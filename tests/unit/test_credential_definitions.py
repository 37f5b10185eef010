from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.cli.commands.configuration import effective_settings
from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.attempt.credentials import proxy_credentials
from fanout.workers.sandbox import LocalProvider
from tests.docker.conftest import make_sandbox_spec

HEAD = (
    "name: pusher\ndescription: Pushes.\ninstruction: Push.\nnetwork: [git.example]\ncredentials:\n"
)
CANARY = "canary-setting-71"


def load(folder: Path, entry: str, head: str = HEAD):
    path = folder / "pusher.yaml"
    path.write_text(f"{head}- {entry}\n")
    return load_agent_definition(path)


def test_a_credential_names_host_header_and_secret(tmp_path):
    definition = load(
        tmp_path,
        "{host: GIT.example, scheme: basic, username: me, secret: GIT_TOKEN, methods: [GET], paths: [/a/*]}",
    )

    (made,) = proxy_credentials(
        definition.name, definition.credentials, {"GIT_TOKEN": secret(CANARY)}
    )

    assert (made.host, made.port, made.header) == ("git.example", 443, "Authorization")
    assert made.value.get_secret_value() == "Basic bWU6Y2FuYXJ5LXNldHRpbmctNzE="
    assert CANARY not in repr(made)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("{host: other.example, secret: A}", "add other.example to network"),
        ("{host: 'git.example:8443', secret: A}", "add git.example:8443 to network"),
        ("{host: '*.example', secret: A}", "credentials.0.host: a host is one name"),
        ("{host: 10.0.0.1, secret: A}", "credentials.0.host: a host is one name"),
        ("{host: 'git.example/a', secret: A}", "credentials.0.host: a host is one name"),
        ("{host: git.example, secret: lower}", "credentials.0.secret"),
        ("{host: git.example, secret: A, header: Host}", "credentials.0.header"),
        ("{host: git.example, secret: A, header: Content-Length}", "credentials.0.header"),
        ("{host: git.example, secret: A, header: 'X: y'}", "credentials.0.header"),
        ("{host: git.example, secret: A, username: me}", "username belongs to the scheme basic"),
        ("{host: git.example, secret: A, scheme: basic, username: 'a:b'}", "username"),
        ("{host: git.example, secret: A, paths: [a]}", "a path begins with /"),
        ("{host: git.example, secret: A, methods: [get]}", "a method is a word"),
        ("{host: git.example, secret: A, token: B}", "unknown key 'credentials.0.token'"),
        (
            "{host: git.example, secret: A}\n- {host: git.example, secret: B}",
            "each host has one entry",
        ),
    ],
)
def test_a_credential_that_cannot_be_used_is_named_with_its_line(tmp_path, entry, complaint):
    with pytest.raises(InvalidAgentDefinition, match=r"pusher\.yaml:") as raised:
        load(tmp_path, entry)

    assert complaint in str(raised.value)


def test_a_host_may_be_named_by_the_names_below_another(tmp_path):
    head = HEAD.replace("[git.example]", '["*.example", "api.example:8443"]')

    assert load(tmp_path, "{host: a.git.example, secret: A}", head)
    assert load(tmp_path, "{host: 'api.example:8443', secret: A}", head)
    with pytest.raises(InvalidAgentDefinition, match="add example to network"):
        load(tmp_path, "{host: example, secret: A}", head)


def secret(value: str):
    return load_settings(secrets={"a": value}).secrets["A"]


def test_secrets_come_from_the_environment_and_are_never_shown(monkeypatch):
    monkeypatch.setenv("FANOUT_SECRETS__GIT_TOKEN", CANARY)
    monkeypatch.setenv("FANOUT_SECRETS__NUMBER", "0123456789.10")

    settings = load_settings()

    assert settings.secrets["GIT_TOKEN"].get_secret_value() == CANARY
    assert settings.secrets["NUMBER"].get_secret_value() == "0123456789.10"
    assert CANARY not in repr(settings) + repr(list(effective_settings(settings)))


@pytest.mark.parametrize(
    "value", ["short", "with a\nnewline", "umlaut-ä-value", " space-before", "newline-after\n"]
)
def test_a_secret_that_cannot_be_in_a_header_is_named_without_its_value(monkeypatch, value):
    monkeypatch.setenv("FANOUT_SECRETS__GIT_TOKEN", value)

    with pytest.raises(InvalidSetting, match="GIT_TOKEN: a secret has at least 8") as raised:
        load_settings()

    assert value.strip() not in str(raised.value)


@pytest.fixture
def credentials(tmp_path):
    definition = load(tmp_path, "{host: git.example, secret: A}")
    return proxy_credentials(definition.name, definition.credentials, {"A": secret(CANARY)})


@pytest.fixture
def local(tmp_path):
    async def no_snapshot(_identity):
        raise AssertionError

    return LocalProvider(no_snapshot, root=tmp_path, installation="test")


async def test_a_sandbox_without_a_proxy_refuses_credentials(local, credentials):
    with pytest.raises(InvalidJob, match="Credentials need Docker sandboxes"):
        async with local.open(make_sandbox_spec(credentials=credentials)):
            pass
