"""What the proxy of a sandbox puts into requests: credentials, with their secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from pydantic import SecretStr

from fanout.orchestrator.configuration.credentials import CredentialDefinition
from fanout.orchestrator.jobs.failures import InvalidJob

from ..sandbox import Credential


def proxy_credentials(
    agent: str, credentials: Sequence[CredentialDefinition], secrets: Mapping[str, SecretStr]
) -> tuple[Credential, ...]:
    """Return credentials with their secrets.

    Args:
        agent: The name of the agent that has them.
        credentials: They, as its definition names them.
        secrets: The worker's secrets by name.

    Raises:
        InvalidJob: A secret is not set; the message names it.
    """
    return tuple(
        _credential(credential, _secret(agent, credential.secret, secrets))
        for credential in credentials
    )


def _secret(agent: str, name: str, secrets: Mapping[str, SecretStr]) -> str:
    if name not in secrets:
        raise InvalidJob(
            f"The agent {agent} needs the secret {name}: set FANOUT_SECRETS__{name} for the worker."
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
