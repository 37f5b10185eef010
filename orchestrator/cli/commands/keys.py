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

from ...configuration.api_settings import (
    EVERYBODY,
    MAX_NAME_CHARACTERS,
    CallerSettings,
    Name,
    NameOrEverybody,
    Scope,
    is_reserved,
)
from ...configuration.settings import load_settings
from ...embedded.use import in_use
from ...jobs.spec import (
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICES,
    CallerPolicy,
    Limits,
)
from ...jobs.store.access_stores import AccessStores, open_access_stores
from ...jobs.store.api_keys import ApiKey, NameTaken, UnknownKey
from ...jobs.store.audit_stream import AuditEntry
from ...spelling import did_you_mean
from ..terminal import output
from ..terminal.exit_codes import UsageProblem
from ..terminal.options import AsJson
from ..terminal.session import WAITING_FOR_REDIS
from ..terminal.waiting import waiting

MAX_SHOWN_CHOICES = 120
"""The longest line about a key's choices; --json has all of them."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
MAX_AUDIT_ENTRIES = 10_000
"""The most entries that one call prints: more are read page by page over HTTP."""
AUDIT_PAGE_ENTRIES = 500
"""The entries read from Redis at once."""

_DURATION = re.compile(r"([0-9]{1,6})([smhdw])")


def create(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The name of the person or program that will use it."),
    ],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE", help="submit, read, approve or admin; can be given several times."
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            help="The owner of its jobs; '*': it sees all jobs of its tenant; default: NAME."
        ),
    ] = None,
    tenant: Annotated[
        str, typer.Option(help="The tenant whose share of the workers is used.")
    ] = "default",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="30d, 12h, 90m; default: never.")
    ] = None,
    may_choose_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="A model that its jobs may name, such as 'gemini-*'; can be given several times. "
            "By default its jobs have the values of agent definitions; the same holds for the "
            "options below.",
        ),
    ] = None,
    may_choose_verify: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND", help="A command for verify and verify_merges; '*': any."),
    ] = None,
    may_choose_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A host for limits.network.")
    ] = None,
    may_choose_limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="The largest value of another limit."),
    ] = None,
    may_choose_anything: Annotated[
        bool,
        typer.Option(
            help="It may choose whatever the installation permits, as keys of earlier releases."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key for the service, and print it once."""
    scopes, name = _scopes(scope or []), _name("NAME", name)
    given: dict[str, Any] = {
        "policy": _policy(
            anything=may_choose_anything,
            models=may_choose_model,
            verify=may_choose_verify,
            hosts=may_choose_host,
            limits=may_choose_limit,
        ),
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
        output.document({"key": key, **_shown(record, load_settings().api.callers)})
        return
    output.notice("Copy this key; it is not shown again:")
    output.payload(key)


def ls(as_json: AsJson = False) -> None:
    """List the keys of the service, without the keys themselves."""
    asyncio.run(_ls(as_json=as_json))


async def _ls(*, as_json: bool) -> None:
    callers = load_settings().api.callers
    async with _opened() as stores:
        records = await stores.keys.list()
    if as_json:
        output.document({"keys": [_shown(record, callers) for record in records]})
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
            output.one_line(may_choose(record, callers), MAX_SHOWN_CHOICES),
        )
        for record in records
    ]
    columns = ("ID", "NAME", "SCOPES", "OWNER", "TENANT", "STATE", "LAST USED", "MAY CHOOSE")
    output.table(columns, rows)


def revoke(
    key: Annotated[
        str,
        typer.Argument(metavar="ID|NAME", help="The id or name, as `fanout keys ls` prints it."),
    ],
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
        output.document(_shown(record, load_settings().api.callers))
    else:
        output.payload(f"{record.id}  {record.name}  revoked")


def audit(
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MAX_AUDIT_ENTRIES, help="How many.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Print the audit log of the service, newest first."""
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
        raise UsageProblem(f"Give the key a scope: --scope {' --scope '.join(known)}")
    for name in given:
        if name not in known:
            raise UsageProblem(
                f"There is no scope {name!r}; the scopes are {', '.join(known)}."
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
        f"{what} {name!r} is not a valid name: a name has letters, digits and _ . @ + : / | -, "
        f"begins with a letter or a digit, and has at most {MAX_NAME_CHARACTERS} characters."
    )


def _duration(text: str) -> int:
    """Return a time in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not (seconds := int(match[1]) * SECONDS[match[2]]):
        raise UsageProblem(f"--expires {text!r} is not a time: write it like 30d, 12h or 90m.")
    return seconds


def _policy(
    *,
    anything: bool,
    models: list[str] | None,
    verify: list[str] | None,
    hosts: list[str] | None,
    limits: list[str] | None,
) -> CallerPolicy:
    """Return the choices of a new key."""
    if anything and (models or verify or hosts or limits):
        raise UsageProblem("--may-choose-anything includes all other choices: use it alone.")
    numbers = {name: value for name, _, value in (one.partition("=") for one in limits or ())}
    names = [name for name in Limits.model_fields if name != "network"]
    try:
        bounds = Limits.model_validate({"network": hosts, **numbers})
    except ValidationError:
        raise UsageProblem(
            "--may-choose-limit is written like timeout_seconds=3600, with a number that is allowed; "
            f"there are {', '.join(names)}."
        ) from None
    try:
        return CallerPolicy(
            anything=anything,
            models=None if models is None else tuple(models),
            verify=None if verify is None else tuple(verify),
            limits=bounds,
        )
    except ValidationError:
        raise UsageProblem(
            f"--may-choose-model and --may-choose-verify can each be given {MAX_CHOICES} times, with "
            f"1 to {MAX_CHOICE_CHARACTERS:,} characters."
        ) from None


def _shown(record: ApiKey, callers: CallerSettings) -> dict[str, Any]:
    shown = record.model_dump(mode="json", exclude={"policy"})
    return shown | {"state": _state(record), "may_choose": may_choose(record, callers)}


def _state(record: ApiKey) -> str:
    if record.revoked_at is not None:
        return "revoked"
    if not record.works(time.time()):
        return "expired"
    return "works" if record.expires_at is None else f"until {_time(record.expires_at)}"


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def may_choose(record: ApiKey, callers: CallerSettings) -> str:
    """Return a key's choices for its jobs, in words."""
    policy = callers.make_policy(record.tenant, record.name, record.own_policy)
    if policy.anything:
        before = " (made before there were lists)" if record.policy is None else ""
        return f"anything{before}"
    limits = policy.limits.model_dump(exclude_none=True)
    hosts = limits.pop("network", ())
    numbers = [f"{name}={value:g}" for name, value in limits.items()]
    lists = {
        "models": policy.models,
        "verify": policy.verify,
        "hosts": hosts if hosts != "none" else (),
        "limits": numbers,
    }
    parts = [f"{name}: {', '.join(entries)}" for name, entries in lists.items() if entries]
    return "; ".join(parts) or "what agent definitions say"
