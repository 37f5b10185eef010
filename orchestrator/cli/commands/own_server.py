"""A server of a person's own that speaks OpenAI's interface: its address and its models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from fanout.orchestrator.cli.terminal import output

ADDRESS_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"

NO_KEY = "none"

_MAKERS = (
    ("claude-", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    ("gemini-", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
)
"""How models' names begin, with the variables that their maker's own tools read."""

ASK_SECONDS = 10.0
"""For the list of models, which a server has at hand; a person waits."""
MAX_QUOTED_CHARACTERS = 80
"""Of an answer that is no list of models."""

_ADDRESS = re.compile(
    r"https?://.+|(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[\da-f:]+\])?:\d{2,5}(?:/.*)?", re.IGNORECASE
)
"""With a scheme, or with a port and without the colon of a model's tag: `localhost:11434`."""
_ENDPOINT = re.compile(r"/(?:chat/completions|completions|responses|models|embeddings)$")
_OLLAMAS_OWN = re.compile(r"/api(?:/(?:tags|chat|generate|version))?$")
"""The paths of Ollama's own interface, beside which it has that of OpenAI."""


class ServerProtocol(NamedTuple):
    """How a model of a server may be asked."""

    model: str
    """Its name, as settings have it."""
    address_variable: str
    address: str
    key_variable: str
    key_without_one: str = ""
    """Sent in a trial where no key is given: an exported key of a maker is for the maker's own
    service, and not for whoever is at the address."""


class NoModelServer(Exception):
    """What is at an address is no server of models; the text says what answered."""


class KeyWanted(NoModelServer):
    """The server lists its models only to those with a key."""


@dataclass(frozen=True)
class OwnServer:
    """A server that speaks OpenAI's interface."""

    address: str
    """Its base address: that to which `/chat/completions` is added."""
    models: tuple[str, ...]
    """The models that it lists; empty if it lists none."""


def is_address(text: str) -> bool:
    """Return whether a text is the address of a server, and not the name of a model."""
    return _ADDRESS.fullmatch(text.strip()) is not None


def find_server(given: str, key: str | None) -> OwnServer:
    """Return the server at an address, however it is written: with `/v1` or without it.

    Args:
        given: The address.
        key: Is sent along; None: the server wants none.

    Raises:
        KeyWanted: It answers only to those with a key, or another one.
        NoModelServer: Nothing answers there, or something else.
    """
    addresses = list(_base_addresses(given))
    # An Anthropic-compatible server looks at the second one.
    headers = {"Authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    is_there, said = False, ""
    is_https = addresses[0].startswith("https:")  # certificates take long to load
    with httpx.Client(
        verify=is_https, timeout=ASK_SECONDS, headers=headers, follow_redirects=True
    ) as client:
        for address in addresses:
            answer = _asked(client, f"{address}/models")
            if answer.status_code in {401, 403}:
                raise KeyWanted(f"{address} wants a key ({answer.status_code}).")
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                raise NoModelServer(f"{address} is not ready yet: {_described(answer)}. Try again.")
            models = _models_in(answer)
            if models is not None:
                return OwnServer(address, models)
            is_there = is_there or (_is_json(answer) and "error" in answer.text)
            said = said or _described(answer)
        models = _models_in(_asked(client, f"{_root(addresses)}/api/tags"))
    if models is not None:  # an Ollama that does not list them under /v1
        return OwnServer(f"{_root(addresses)}/v1", models)
    if is_there:  # a server of one model may list none
        return OwnServer(addresses[0], ())
    raise NoModelServer(
        f"{addresses[0]}/models has no list of models: {said}. Is it the address of a server of "
        "models, and its port?"
    )


def list_protocols(server: OwnServer, model: str) -> list[ServerProtocol]:
    """Return the ways in which a server may be asked for a model, the likeliest first.

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
    """Return what is answered.

    Raises:
        NoModelServer: Nothing is.
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


def _models_in(answer: httpx.Response) -> tuple[str, ...] | None:
    """Return the names of the models in a list of OpenAI's or of Ollama's form; None for others."""
    if answer.status_code != httpx.codes.OK or not _is_json(answer):
        return None
    body = answer.json()
    entries = body if isinstance(body, list) else None
    if isinstance(body, dict):
        entries = next((body[name] for name in ("data", "models") if name in body), None)
    if not isinstance(entries, list):
        return None
    return tuple(dict.fromkeys(filter(None, map(_name_in, entries))))


def _name_in(entry: Any) -> str:
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
    """Return what was answered, in a few words."""
    text = output.one_line(answer.text, MAX_QUOTED_CHARACTERS)
    if text.lower().startswith(("<!doctype", "<html")):
        return f"it answers with a web page (status {answer.status_code})"
    return f"it answers with status {answer.status_code}" + (f": {text}" if text else "")
