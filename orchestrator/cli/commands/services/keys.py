"""`keys`: make, list and revoke the keys of the service, and read its audit log."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.cli.terminal.live.waiting import waiting
from fanout.orchestrator.cli.terminal.options import AsJson
from fanout.orchestrator.cli.terminal.session import WAITING_FOR_REDIS
from fanout.orchestrator.configuration.sections.api_settings import (
    EVERYBODY,
    MAX_NAME_CHARACTERS,
    Name,
    NameOrEverybody,
    Scope,
    is_reserved,
)
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.embedded.use import in_use
from fanout.orchestrator.jobs.store.access.api_keys import ApiKey, NameTaken, UnknownKey
from fanout.orchestrator.jobs.store.access.audit_stream import AuditEntry
from fanout.orchestrator.jobs.store.access.stores import AccessStores, open_access_stores
from fanout.orchestrator.spelling import did_you_mean

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
MAX_AUDIT_ENTRIES = 10_000
"""Printed by one call: more are read page by page over HTTP."""
AUDIT_PAGE_ENTRIES = 500
"""Read from Redis at once."""

_DURATION = re.compile(r"([0-9]{1,6})([smhdw])")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of who or what will use it.")],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE", help="submit, read, approve or admin; can be given several times."
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(help="Whose jobs these are; '*': it sees all of its tenant; default: NAME."),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose share of the workers is used.")] = "default",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="30d, 12h, 90m; default: never.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key for the service, and print it once."""
    scopes, name = _scopes(scope or []), _name("NAME", name)
    given = {
        "owner": _name("--owner", owner or name, everybody=owner is not None),
        "tenant": _name("--tenant", tenant, everybody=owner == EVERYBODY),
        "expires_at": None if expires is None else time.time() + _duration(expires),
    }
    asyncio.run(_create(name, scopes, as_json=as_json, **given))


async def _create(name: str, scopes: Sequence[Scope], *, as_json: bool, **given: Any) -> None:
    async with _opened() as stores:
        operator = await stores.operator()
        try:
            key, record = await stores.keys.create(name, scopes, created_by=operator, **given)
        except NameTaken as refusal:
            raise UsageProblem(str(refusal)) from None
        await _note(stores, operator, "key.create", record)
    if record.owner == EVERYBODY:
        of_all = "all tenants" if record.tenant == EVERYBODY else f"the tenant {record.tenant}"
        output.notice(f"Warning: this key sees and changes the jobs of all owners of {of_all}.")
    if as_json:
        output.document({"key": key, **_shown(record)})
        return
    output.notice("Copy this key; it is not shown again:")
    output.payload(key)


def ls(as_json: AsJson = False) -> None:
    """List the keys of the service, without the keys themselves."""
    asyncio.run(_ls(as_json=as_json))


async def _ls(*, as_json: bool) -> None:
    async with _opened() as stores:
        records = await stores.keys.list()
    if as_json:
        output.document({"keys": [_shown(record) for record in records]})
        return
    if not records:
        output.notice("There are no keys: `fanout keys create NAME --scope read` makes one.")
        return
    rows = [
        (
            record.id,
            output.one_line(record.name, MAX_NAME_CHARACTERS),
            ",".join(record.scopes),
            output.one_line(record.owner, MAX_NAME_CHARACTERS),
            output.one_line(record.tenant, MAX_NAME_CHARACTERS),
            _state(record),
            _time(record.last_used_at) or "never",
        )
        for record in records
    ]
    output.table(("ID", "NAME", "SCOPES", "OWNER", "TENANT", "STATE", "LAST USED"), rows)


def revoke(
    key: Annotated[str, typer.Argument(metavar="ID|NAME", help="As `fanout keys ls` prints it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a key and its browser sessions, at once."""
    asyncio.run(_revoke(key, as_json=as_json))


async def _revoke(key: str, *, as_json: bool) -> None:
    async with _opened() as stores:
        try:
            record = await stores.keys.revoke(key)
        except UnknownKey as refusal:
            known = [name for one in await stores.keys.list() for name in (one.name, one.id)]
            raise UsageProblem(f"{refusal}{did_you_mean(key, known)}") from None
        await _note(stores, await stores.operator(), "key.revoke", record)
    if as_json:
        output.document(_shown(record))
    else:
        output.payload(f"{record.id}  {record.name}  revoked")


def audit(
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MAX_AUDIT_ENTRIES, help="How many.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Print what was done and refused over the service, newest first."""
    asyncio.run(_audit(limit, as_json=as_json))


async def _audit(limit: int, *, as_json: bool) -> None:
    entries: list[AuditEntry] = []
    cursor = None
    async with _opened() as stores:
        while len(entries) < limit:
            page = await stores.audit.page(cursor, min(limit - len(entries), AUDIT_PAGE_ENTRIES))
            entries += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
    if as_json:
        output.document({"entries": [entry.model_dump() for entry in entries]})
        return
    rows = [
        (
            _time(int(entry.id.partition("-")[0]) / 1000),
            entry.action,
            output.one_line(entry.outcome, MAX_NAME_CHARACTERS),
            output.one_line(entry.target or "-", MAX_NAME_CHARACTERS),
            output.one_line(entry.name or "-", MAX_NAME_CHARACTERS),
            entry.address or "-",
        )
        for entry in entries
    ]
    output.table(("TIME", "ACTION", "OUTCOME", "TARGET", "WHO", "ADDRESS"), rows)


@asynccontextmanager
async def _opened() -> AsyncIterator[AccessStores]:
    with waiting(WAITING_FOR_REDIS):
        async with (
            in_use(load_settings(), output.notice) as found,
            open_access_stores(str(found.redis_url), found.redis_prefix) as stores,
        ):
            yield stores


async def _note(stores: AccessStores, operator: str, action: str, record: ApiKey) -> None:
    entry = AuditEntry(
        action=action,
        outcome="done",
        target=record.id,
        name=operator,
        credential="operator",
        owner=record.owner,
        tenant=record.tenant,
    )
    await stores.audit.append(entry)


def _scopes(given: Sequence[str]) -> list[Scope]:
    known = [scope.value for scope in Scope]
    if not given:
        raise UsageProblem(f"Say what the key may do: --scope {' --scope '.join(known)}")
    for name in given:
        if name not in known:
            raise UsageProblem(
                f"There is no scope {name!r}: there are {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )
    return [scope for scope in Scope if scope in given]


def _name(what: str, name: str, *, everybody: bool = False) -> str:
    kind: Any = NameOrEverybody if everybody else Name
    if what != "--tenant" and is_reserved(name):
        raise UsageProblem(f"{what} {name} is reserved for the operator: choose another name.")
    try:
        return str(TypeAdapter(kind).validate_python(name))
    except ValidationError:
        pass
    if name == EVERYBODY and what == "--tenant":
        raise UsageProblem("--tenant '*' needs --owner '*'.")
    raise UsageProblem(
        f"{what} {name!r} is no name: it has letters, digits and _ . @ + : / | -, begins with a "
        f"letter or a digit, and has at most {MAX_NAME_CHARACTERS} characters."
    )


def _duration(text: str) -> int:
    """Return a time in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not (seconds := int(match[1]) * SECONDS[match[2]]):
        raise UsageProblem(f"--expires {text!r} is no time: write it like 30d, 12h or 90m.")
    return seconds


def _shown(record: ApiKey) -> dict[str, Any]:
    return record.model_dump(mode="json") | {"state": _state(record)}


def _state(record: ApiKey) -> str:
    if record.revoked_at is not None:
        return "revoked"
    if not record.works(time.time()):
        return "expired"
    return "works" if record.expires_at is None else f"until {_time(record.expires_at)}"


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
