"""Every setting of an installation: name, unit, default and environment variable.

Sources, first wins: the environment (`FANOUT_…`, nested with `__`), a `.env` file,
`config/fanout.toml`. Only composition roots read this module.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from orchestrator.jobs.policy import TREE_JOBS, TenantShare
from orchestrator.jobs.spec import GIB, Limits, ModelRate, TreeBounds

PREFIX = "FANOUT_"
SECRET_WORDS = ("password", "secret", "key", "token", "redis_url", "basic_auth")


class InvalidSetting(ValueError):
    """A setting has a value that is not allowed; the text names it and says what is."""


HIDDEN = "(hidden)"
"""What is shown in the place of a secret."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxSettings(_Section):
    """Where jobs run their commands."""

    provider: Literal["docker", "local", "auto"] | None = None
    """`docker` needs an engine; `local` isolates nothing; `auto` takes docker where an engine
    answers. Unset: `docker` for a worker, `auto` for `demo`, `run` and `up`."""
    image: str = "fanout/python:latest"
    """For agents whose definition names none."""
    runtime: str | None = None
    """The engine's runtime, `runc` or `runsc` for example; unset is the engine's default."""
    owner: str = Field(default="fanout", pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")
    """Labels all containers and volumes; installations that share an engine need different ones."""


class WorkerSettings(_Section):
    """One worker process."""

    concurrency: int = Field(default=8, ge=1, le=1000)
    """Jobs at once in this process."""
    lease_seconds: float = Field(default=9.0, ge=2, le=60)
    """How long a silent attempt counts as alive; renewed every quarter."""
    reap_interval_seconds: float = Field(default=1.0, gt=0, le=60)
    """Between two looks for jobs whose worker is gone: part of the time until they are back at
    work."""
    shutdown_grace_seconds: float = Field(default=10.0, ge=1, le=600)
    """From SIGTERM until the process is gone."""
    checkpoint_seconds: float = Field(default=60.0, ge=0, le=3600)
    """Between two copies of a running job's changed files in the blob store: when a host is lost
    with its disk, at most this much work is done again. A copy of few changes takes some 50 ms, and
    never more than 5 % of the time goes into them. 0 makes none but those of jobs that wait."""
    drain: bool = False
    """On SIGTERM finish the running jobs instead of handing them over; a second SIGTERM hands
    over."""
    queue: str = "fanout"
    stream_text: bool = False
    """Whether a job's journal shows its model's words as they come. Each piece of a few words costs
    0.3 ms of CPU time, and hundreds of agents share a process; what commands print is shown
    anyway."""


class LimitSettings(TreeBounds, Limits):
    """What a job gets when neither it nor its agent says more, and how many run at once."""

    timeout_seconds: float = Field(default=1800, gt=0)
    """Of all attempts of a job together: half an hour is ample for a task that one agent is
    given."""
    max_model_calls: int = Field(default=200, gt=0)
    """Of a job: an agent that has not finished by then goes round in circles."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores for the commands of a job: agents wait for models most of the time."""
    memory_bytes: int = Field(default=GIB, ge=64 * 1024**2)
    """For the commands of a job: the test runs of most projects fit."""
    pids: int = Field(default=256, ge=16)
    """Processes and threads of a job: parallel builds fit, a fork bomb does not."""
    disk_bytes: int = Field(default=2 * GIB, ge=1024**2)
    """What a job may add to its workspace: installed packages and build results fit."""
    network: Literal["none"] | tuple[str, ...] = "none"
    host_jobs: int | None = Field(default=None, ge=1)
    """Jobs at once on one host, over all its workers; unset: what its workers' concurrency adds up
    to."""
    tree_jobs: int = Field(default=TREE_JOBS, ge=1)
    """Jobs of one tree at once, over all hosts."""
    tenant_jobs: int | None = Field(default=None, ge=1)
    """Jobs of one tenant at once, over all hosts, where `FANOUT_TENANTS` gives it no number of its
    own."""
    snapshot_bytes: int = Field(default=2 * GIB, ge=1024)
    """The largest workspace that is sent to a job."""

    def tree_bounds(self) -> TreeBounds:
        """The part that limits how jobs delegate."""
        return TreeBounds(**self.model_dump(include=set(TreeBounds.model_fields)))

    def for_jobs(self) -> Limits:
        """The part that limits a single job."""
        return Limits(**self.model_dump(include=set(Limits.model_fields)))


class FlowerSettings(_Section):
    """The queue's dashboard."""

    port: int = Field(default=5555, ge=1, le=65535)
    basic_auth: SecretStr | None = None
    """`user:password`; unset: `fanout flower` makes a password and prints it once."""


def default_state_dir() -> Path:
    """Where a person's own fanout keeps its Redis and blobs: the XDG state folder."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fanout"


class Settings(BaseSettings):
    """Every setting; frozen."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_file=".env",
        env_ignore_empty=True,
        toml_file="config/fanout.toml",
        frozen=True,
        extra="ignore",  # a `.env` holds other programs' names too
    )

    redis_url: str | None = None
    """`redis://…`, `rediss://…` or `unix://…`; unset: an embedded Redis on this machine."""
    blobs_url: str | None = None
    """An fsspec URL that parents and workers share; unset: a folder in `state_dir`."""
    retention_seconds: float = Field(default=7 * 24 * 3600, ge=1)
    """How long a job, its journal and its blobs are kept after its end."""
    state_dir: Path = Field(default_factory=default_state_dir)
    agents_dir: Path | None = None
    """A folder of agent definitions that adds to, and overrides, those that fanout ships."""
    workspace: Path = Path()
    """The folder that `adk web` and `adk run` work on; the command line has `--workspace`."""
    model: str = "gemini-2.5-flash"
    """For agents whose definition names none."""
    models: dict[str, ModelRate] = Field(default_factory=dict)
    """By model, as it is written where it is used: `requests_per_minute` and `tokens_per_minute`,
    over all workers and coordinators, which need the same; a model that is not named has no
    limit."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    sandbox: SandboxSettings = SandboxSettings()
    worker: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    flower: FlowerSettings = FlowerSettings()
    tenants: dict[str, TenantShare] = Field(default_factory=dict)
    """JSON, or a table in TOML: `{"team-a": {"weight": 3, "jobs": 20}}`. One that is not named
    has weight 1."""

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("it starts with redis://, rediss:// or unix://")
        return url

    @property
    def blobs(self) -> str:
        """The blob store's URL, given or by default."""
        return self.blobs_url or (self.state_dir / "blobs").resolve().as_uri()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before `.env` before `config/fanout.toml`."""
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, file_secret_settings, toml


def load_settings(**overrides: Any) -> Settings:
    """Read the settings once, for a composition root.

    Raises:
        InvalidSetting: a value is not allowed; the text names the setting, the value (unless
            secret) and what is allowed.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise InvalidSetting("\n".join(_in_words(detail) for detail in error.errors())) from None
    except ValueError as error:  # an unreadable TOML or .env file
        raise InvalidSetting(f"The settings cannot be read: {error}") from error


def _in_words(detail: Any) -> str:
    """One validation error as a sentence that says what to mend."""
    path = [str(part) for part in detail["loc"]]
    name = PREFIX + "__".join(path).upper()
    secret = any(word in name.lower() for word in SECRET_WORDS)
    value = HIDDEN if secret else repr(detail["input"])
    message = detail["msg"].removeprefix("Value error, ")
    return f"{name} is {value}, which is not allowed: {message}."


def without_password(url: str) -> str:
    """A URL whose password, and whose query where it might hold one, is hidden."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    query = f"?{HIDDEN}" if parts.query else ""
    user, sign, address = parts.netloc.rpartition("@")
    if sign:
        address = f"{user.partition(':')[0]}:{HIDDEN}@{address}"
    return f"{parts.scheme}://{address}{parts.path}{query}"
