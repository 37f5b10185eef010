"""The credentials of a job's agent, made from its definition and the worker's secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote

from pydantic import SecretStr

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.configuration.credentials import CredentialDefinition
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.sandbox import Credential


def credentials_of(
    definition: AgentDefinition, secrets: Mapping[str, SecretStr]
) -> tuple[Credential, ...]:
    """Return the credentials of an agent's jobs.

    Args:
        definition: The agent's definition.
        secrets: The worker's secrets by name.

    Raises:
        InvalidJob: A secret is not set; the message names it.
    """
    return tuple(
        _credential(credential, _secret(definition, credential.secret, secrets))
        for credential in definition.credentials
    )


def _secret(definition: AgentDefinition, name: str, secrets: Mapping[str, SecretStr]) -> str:
    if name not in secrets:
        raise InvalidJob(
            f"The agent {definition.name} needs the secret {name}: set "
            f"FANOUT_SECRETS__{name} for the worker."
        )
    return secrets[name].get_secret_value()


def _credential(definition: CredentialDefinition, secret: str) -> Credential:
    host, port = definition.address
    value = definition.value(secret)
    spellings = {secret, quote(secret, safe="")}
    if definition.scheme == "basic":
        spellings.add(value.removeprefix("Basic "))
    spellings.add(base64.b64encode(secret.encode()).decode().rstrip("="))
    return Credential(
        host=host,
        port=port,
        secret=definition.secret,
        header=definition.header,
        value=SecretStr(value),
        hidden=tuple(SecretStr(spelling) for spelling in sorted(spellings)),
        methods=definition.methods,
        paths=definition.paths,
    )
