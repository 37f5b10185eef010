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

DEFAULT_USERNAME = "x-access-token"


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
    made = []
    for credential in definition.credentials:
        if credential.secret not in secrets:
            raise InvalidJob(
                f"The agent {definition.name} needs the secret {credential.secret}: set "
                f"FANOUT_SECRETS__{credential.secret} for the worker."
            )
        made.append(_credential(credential, secrets[credential.secret].get_secret_value()))
    return tuple(made)


def _credential(definition: CredentialDefinition, secret: str) -> Credential:
    host, port = definition.address
    value, spellings = secret, {secret, quote(secret, safe="")}
    if definition.scheme == "bearer":
        value = f"Bearer {secret}"
    elif definition.scheme == "basic":
        pair = f"{definition.username or DEFAULT_USERNAME}:{secret}"
        encoded = base64.b64encode(pair.encode()).decode()
        value = f"Basic {encoded}"
        spellings.add(encoded)
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
