"""A person's own model server with OpenAI's interface: its address and its models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from ..terminal import output

ADDRESS_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"

NO_KEY = "none"

_MAKERS = (
    ("claude-", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    ("gemini-", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
)
"""The beginnings of models' names, with the variables that their makers' tools read."""

ASK_SECONDS = 10.0
"""The time for the list of models, which a server answers at once; a person waits."""
MAX_QUOTED_CHARACTERS = 80
"""The longest quotation of an answer that is not a list of models."""

_ADDRESS = re.compile(
    r"https?://.+|(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[\da-f:]+\])?:\d{2,5}(?:/.*)?", re.IGNORECASE
)
"""The pattern of an address: with a scheme, or with a port and without the colon of a model's tag:
`localhost:11434`."""
_ENDPOINT = re.compile(r"/(?:chat/completions|completions|responses|models|embeddings)$")
_OLLAMAS_OWN = re.compile(r"/api(?:/(?:tags|chat|generate|version))?$")
"""The paths of Ollama's own interface, which it offers in addition to OpenAI's."""


class ServerProtocol(NamedTuple):
    """A protocol for requests to a model of a server."""

    model: str
    """The model's name in the form of settings."""
    address_variable: str
    address: str
    key_variable: str
    key_without_one: str = ""
    """The key of a trial without one: an exported key of a maker is for the maker's own service,
    and not for another server."""


class NoModelServer(Exception):
    """The program at an address is not a model server; the text says what answered."""


class KeyWanted(NoModelServer):
    """The server lists its models only for callers with a key."""


@dataclass(frozen=True)
class OwnServer:
    """A server that speaks OpenAI's interface."""

    address: str
    """The base address, to which `/chat/completions` is added."""
    models: tuple[str, ...]
    """The models that it lists; empty if it lists none."""


def is_address(text: str) -> bool:
    """Return whether a text is the address of a server, and not the name of a model."""
    return _ADDRESS.fullmatch(text.strip()) is not None


def find_server(given: str, key: str | None) -> OwnServer:
    """Return the server at an address, with or without `/v1`.

    Args:
        given: The address.
        key: The key for the server; None: it needs none.

    Raises:
        KeyWanted: It answers only with a key, or with another one.
        NoModelServer: Nothing answers there, or another program.
    """
    addresses = list(_base_addresses(given))
    # An Anthropic-compatible server reads the second one.
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    is_there, said = False, ""
    is_https = addresses[0].startswith("https:")  # certificates take long to load
    with httpx.Client(
        verify=is_https, timeout=ASK_SECONDS, headers=headers, follow_redirects=True
    ) as client:
        for address in addresses:
            answer = _asked(client, f"{address}/models")
            if answer.status_code in {401, 403}:
                raise KeyWanted(f"{address} requires a key ({answer.status_code}).")
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise NoModelServer(f"{address} is not ready yet: {_described(answer)}. Try again.")
            models = _listed_models(answer)
            if models is not None:
                return OwnServer(address, models)
            is_there = is_there or (_is_json(answer) and "error" in answer.text)
            said = said or _described(answer)
        models = _listed_models(_asked(client, f"{_root(addresses)}/api/tags"))
    if models is not None:  # an Ollama that does not list them under /v1
        return OwnServer(f"{_root(addresses)}/v1", models)
    if is_there:  # a server of one model may list none
        return OwnServer(addresses[0], ())
    raise NoModelServer(
        f"{addresses[0]}/models has no list of models: {said}. Is it the address of a model "
        "server, with its port?"
    )


def list_protocols(server: OwnServer, model: str) -> list[ServerProtocol]:
    """Return the protocols for requests to a model of a server, the likeliest first.

    A proxy serves models of every maker through OpenAI's interface; other servers have the
    interface of the model's own maker.

    Args:
        server: The server.
        model: The model's name, as the server has it or with the prefix of a protocol.
    """
    is_complete = model.startswith(("chat/", "responses/"))
    name = model if is_complete else f"chat/{model}"
    root = re.sub(r"/v\d+(?:beta)?$", "", server.address)
    return [
        ServerProtocol(name, ADDRESS_VARIABLE, server.address, KEY_VARIABLE),
        *(
            ServerProtocol(model, address_variable, root, key_variable, NO_KEY)
            for prefix, address_variable, key_variable in _MAKERS
            if model.startswith(prefix)
        ),
    ]


def _base_addresses(given: str) -> Iterator[str]:
    """Yield the base addresses that a person may mean, the likeliest first."""
    text = given.strip().partition("?")[0].partition("#")[0].rstrip("/")
    if text.startswith(":"):
        text = f"localhost{text}"
    if "://" not in text:
        text = f"http://{text}"
    text = _OLLAMAS_OWN.sub("", _ENDPOINT.sub("", text))
    has_path = "/" in text.partition("://")[2]
    yield from (text, f"{text}/v1") if has_path else (f"{text}/v1", text)


def _root(addresses: list[str]) -> str:
    return re.sub(r"/v\d+$", "", min(addresses, key=len))


def _asked(client: httpx.Client, url: str) -> httpx.Response:
    """Return the answer of a server.

    Raises:
        NoModelServer: There is no answer.
    """
    try:
        return client.get(url)
    except httpx.TimeoutException:
        raise NoModelServer(f"{url} did not answer within {ASK_SECONDS:g} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        why = output.one_line(str(error) or "the connection ended", MAX_QUOTED_CHARACTERS)
        raise NoModelServer(
            f"Nothing answers at {url} ({why}). Is the server running, and is that its port?"
        ) from None


def _listed_models(answer: httpx.Response) -> tuple[str, ...] | None:
    """Return the names of the models in a list in OpenAI's or Ollama's form; None for others."""
    if answer.status_code != httpx.codes.OK or not _is_json(answer):
        return None
    body = answer.json()
    entries = body if isinstance(body, list) else None
    if isinstance(body, dict):
        entries = next((body[name] for name in ("data", "models") if name in body), None)
    if not isinstance(entries, list):
        return None
    return tuple(dict.fromkeys(filter(None, map(_find_name, entries))))


def _find_name(entry: Any) -> str:
    if isinstance(entry, dict):
        entry = next((entry[key] for key in ("id", "model", "name") if entry.get(key)), "")
    return entry if isinstance(entry, str) and entry.isprintable() and "," not in entry else ""


def _is_json(answer: httpx.Response) -> bool:
    try:
        answer.json()
    except ValueError:
        return False
    return True


def _described(answer: httpx.Response) -> str:
    """Return a description of an answer, in a few words."""
    text = output.one_line(answer.text, MAX_QUOTED_CHARACTERS)
    if text.lower().startswith(("<!doctype", "<html")):
        return f"it answers with a web page (status {answer.status_code})"
    return f"it answers with status {answer.status_code}" + (f": {text}" if text else "")
