"""Every setting of an installation: name, unit, default and environment variable.

Sources, first wins: the environment (`FANOUT_…`, nested with `__`), then the `.env` next to the
configuration file, then that file (`configuration_file.py`). Only composition roots read this
module.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from ..jobs.ceilings import Ceilings
from ..jobs.policy import TREE_JOBS, TenantShare
from ..jobs.redis_url import check_redis_url
from ..jobs.spec import GIB, Limits, ModelRate, TreeBounds
from ..spelling import did_you_mean
from ..valid_text import not_utf_8
from .api_settings import ApiSettings
from .configuration_file import (
    UnusableConfiguration,
    configuration_file,
    export_keys,
)
from .credentials import SecretName, usable_value
from .known_names import possible_model
from .notification_settings import NotificationSettings
from .setting_errors import (
    HIDDEN,
    given_variables,
    line_of,
    misspelt,
    not_json,
    sentences,
)
from .storage_settings import StorageSettings
from .tool_settings import PythonToolSettings, WebSettings

PREFIX = "FANOUT_"


class InvalidSetting(ValueError):
    """A setting has a value that is not allowed; the text names it and the allowed values."""


_PATHS = {"state_dir", "agents_dir", "workspace", "ca_file"}
"""The settings that are paths, in all sections."""

_SCRIPTED = "scripted:"
"""The beginning of a model's name that is followed by the path of a file."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxSettings(_Section):
    """The sandbox in which jobs run their commands."""

    provider: Literal["docker", "local"] = "docker"
    """`docker` needs an engine. `local` isolates nothing: commands are processes of this machine;
    it is never chosen automatically, except by `fanout demo`."""
    image: str = "fanout/python:latest"
    """The image for agents whose definition names none."""
    ca_file: Path | None = None
    """A PEM file of certificate authorities for jobs' hosts, in addition to the system's."""
    runtime: str | None = None
    """The engine's runtime, for example `runc` or `runsc`; unset: `crun` instead of `runc` if the
    engine has it and it works. `fanout doctor --security` shows the result."""
    warm: int | None = Field(default=None, ge=0, le=1000)
    """How many sandboxes a worker may start in advance, for jobs that will probably need one;
    unset: four for each core of the engine; 0: none. Each waiting sandbox takes some ten MB of its
    host."""
    disk_quota: Literal["auto", "image", "watch"] = "auto"
    """How the disk limit of jobs is enforced: `image` is a file system for each job, whose size the
    kernel limits; it needs an engine that lets one of fanout's containers mount. `watch` measures
    every two seconds. `auto` is `image` if the engine supports it; `fanout doctor` shows the
    result."""
    first_uid: int = Field(default=100_000, ge=10_002, le=2_000_000_000)
    """The first numeric user id of jobs. Each job with its own disk has its own user, because the
    kernel counts inotify instances and more by user, over all containers."""
    disk_reserve_bytes: int = Field(default=2 * GIB, ge=0)
    """The free space of the engine's disk below which no sandbox opens, and the largest job is
    stopped."""
    environment_seconds: float = Field(default=7 * 24 * 3600, ge=60)
    """How long a prepared environment stays on an engine that no job uses: a week."""
    environment_bytes: int = Field(default=20 * GIB, ge=0)
    """The size of the prepared environments on an engine above which the longest unused ones are
    removed: a tenth of a common disk."""


class WorkerSettings(_Section):
    """The settings of one worker."""

    concurrency: int = Field(default=8, ge=1, le=1000)
    """The maximum number of concurrent jobs of this worker, over all its processes."""
    processes: int = Field(default=0, ge=0, le=64)
    """Processes that share these jobs; 0: one for each 16 jobs, at most one a core, or eight."""
    lease_seconds: float = Field(default=9.0, ge=2, le=60)
    """The time without a heartbeat after which an attempt counts as lost; renewed every quarter."""
    reap_interval_seconds: float = Field(default=1.0, gt=0, le=60)
    """The time between two checks for jobs whose worker is lost: a part of the time until they run
    again."""
    shutdown_grace_seconds: float = Field(default=10.0, ge=1, le=600)
    """The time from SIGTERM until the end of the process."""
    checkpoint_seconds: float = Field(default=60.0, ge=0, le=3600)
    """The time between two copies of a running job's changed files to the blob store: when a host
    is lost with its disk, at most this much work is repeated. A copy of few changes takes some 50
    ms, and copies never take more than 5 % of the time. 0: copies only when a job begins to wait.
    """
    drain: bool = False
    """Whether SIGTERM lets running jobs finish; only a second SIGTERM releases them."""
    queue: str = "fanout"
    """The Celery queue, of clients and workers."""
    pool: str = Field(default="", pattern=r"^[0-9a-z]{0,32}$")
    """The pool of workers that runs this process's jobs, or that a worker belongs to; set by
    fanout, which starts a separate worker for each set of settings and keys."""
    remote_control: bool = True
    """Whether Celery's commands (`celery control`, Flower) may change workers and cancel jobs:
    everyone who may query workers could also send these, because both use the same channel."""
    stream_text: bool = False
    """Whether a job's journal contains its model's text while it is generated: 0.3 ms of CPU time
    for each piece of a few words. The output of commands is always in the journal."""


class LimitSettings(TreeBounds, Limits):
    """The default limits of a job, and the limits of concurrent jobs."""

    timeout_seconds: float = Field(default=1800, gt=0)
    """The time of all attempts of a job together: half an hour is ample for the task of one agent.
    """
    max_model_calls: int = Field(default=200, gt=0)
    """The model calls of a job: an agent that has not finished by then repeats itself."""
    max_wait_seconds: float = Field(default=24 * 3600, ge=0)
    """How long a job waits, in all, for a model whose quota is used up or that is away: a day, in
    which most quotas are filled up. 0: the job fails at once."""
    max_calls: int = Field(default=1000, gt=0)
    """Jobs that a script may ask for: one that asks for more is more often wrong than large."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores for the commands of a job: agents wait for models most of the time."""
    memory_bytes: int = Field(default=GIB, ge=64 * 1024**2)
    """The memory for the commands of a job: enough for the tests of most projects."""
    pids: int = Field(default=256, ge=16)
    """Processes and threads of a job: enough for parallel builds, too few for a fork bomb."""
    disk_bytes: int = Field(default=2 * GIB, ge=1024**2)
    """Bytes that a job may add to its workspace: enough for packages and build results."""
    network: Literal["none"] | tuple[str, ...] = "none"
    network_bytes: int = Field(default=2 * GIB, ge=1024)
    """Bytes that a job may send and receive, over all attempts: enough for a large repository and
    its packages, too few to copy a disk."""
    host_jobs: int | None = Field(default=None, ge=1)
    """Concurrent jobs on one host; unset: the sum of the concurrency of its workers."""
    tree_jobs: int = Field(default=TREE_JOBS, ge=1)
    """Concurrent jobs of one tree, over all hosts."""
    tenant_jobs: int | None = Field(default=None, ge=1)
    """Concurrent jobs of one tenant, over all hosts, unless `FANOUT_TENANTS` says how many."""
    snapshot_bytes: int = Field(default=2 * GIB, ge=1024)
    """The largest workspace that a job can start from."""

    def tree_bounds(self) -> TreeBounds:
        """Return the limits of a tree of jobs that delegate."""
        return TreeBounds(**self.model_dump(include=set(TreeBounds.model_fields)))

    def for_jobs(self) -> Limits:
        """Return the limits of a single job."""
        return Limits(**self.model_dump(include=set(Limits.model_fields)))


class QueueSettings(_Section):
    """The queue between clients and workers."""

    signing_keys: tuple[Annotated[SecretStr, Field(min_length=16)], ...] = ()
    """Secrets, as JSON, that clients and workers share: messages are signed with the first, and
    workers refuse those signed with none of them. Empty: neither signed nor checked."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys as texts."""
        return tuple(key.get_secret_value() for key in self.signing_keys)


class FlowerSettings(_Section):
    """The settings of the queue's dashboard."""

    port: int = Field(default=5555, ge=1, le=65535)
    """The port on the loopback interface; unset: FLOWER_PORT, where that is set."""
    basic_auth: SecretStr | None = None
    """`user:password`; unset: `fanout flower` generates a password and prints it once."""


def default_state_dir() -> Path:
    """Return the folder of a person's own Redis and blobs, in the XDG state folder."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # its standard says that such a value is ignored
        base = Path.home() / ".local" / "state"
    return base / "fanout"


class Settings(BaseSettings):
    """All settings; frozen."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",  # a `.env` contains other programs' names too
    )

    redis_url: str | None = None
    """`redis://…`, `rediss://…` or `unix://…`; unset: an embedded Redis on this machine. With
    `rediss://` the certificate is always verified; `?ssl_ca_certs=/path/to/ca.pem` names its
    authority, `ssl_certfile` and `ssl_keyfile` a certificate of the client. `valkey://` and
    `valkeys://` are the same. `sentinel://host:26379,host2/0?master_name=NAME`: the primary that
    Sentinels name; `sentinels://` with TLS."""
    redis_prefix: str = Field(
        default="fanout", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64
    )
    """The beginning of all keys and channels: installations with different ones share a database
    and do not see each other."""
    redis_memory_bytes: int = Field(default=GIB // 2, ge=16 * 1024**2)
    """The memory and disk limit of an embedded Redis; a full one accepts no new jobs and loses
    none."""
    embedded_idle_seconds: float = Field(default=600, ge=1)
    """The time without use after which the Redis and the worker that `fanout run` has started end.
    """
    blobs_url: str | None = None
    """An fsspec URL that parents and workers share; unset: a folder in `state_dir`."""
    blobs_timeout_seconds: float = Field(default=20, gt=0)
    """The time without an answer after which a remote blob store fails. A working one answers
    within a second, and its driver's own repetitions take up to ten."""
    retention_seconds: float = Field(default=7 * 24 * 3600, ge=1)
    """How long a job, its journal and its blobs are kept after its end."""
    state_dir: Path = Field(default_factory=default_state_dir)
    """The folder of the private Redis, its blobs and the kept conflicts."""
    agents_dir: Path | None = None
    """A folder of agent definitions that adds to, and overrides, those that fanout ships."""
    workspace: Path = Path()
    """The folder that `adk web` and `adk run` work on; the command line has `--workspace`."""
    model: Annotated[str, AfterValidator(possible_model)] = "gemini-2.5-flash"
    """The model of agents whose definition names none."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """The most output tokens of one reply of a model, set for workers, for agents whose definition
    sets no limit; unset: the limit of the model's service, 16,000 for Claude."""
    max_result_tokens: int = Field(default=8_000, ge=2_500)
    """What the results of any number of tasks add to an agent's next request at most, in tokens,
    set for workers. Each whole result is in the agent's `/task_results`."""
    models: dict[str, ModelRate] = Field(default_factory=dict)
    """The rate limits by model, under the name with which it is used: `requests_per_minute` and
    `tokens_per_minute`, over all workers and coordinators, which need the same setting; other
    models have no limit."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The log level of workers, on stderr."""
    sandbox: SandboxSettings = SandboxSettings()
    worker: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    ceilings: Ceilings = Ceilings()
    """The limits that no job may exceed; a default above its ceiling is reduced to it."""
    storage: StorageSettings = StorageSettings()
    queue: QueueSettings = QueueSettings()
    flower: FlowerSettings = FlowerSettings()
    api: ApiSettings = ApiSettings()
    notifications: NotificationSettings = NotificationSettings()
    web: WebSettings = WebSettings()
    tools: dict[str, PythonToolSettings] = Field(default_factory=dict)
    """JSON, or a table in TOML: what tools of the entry points `fanout.tools` get, by their names:
    `{"jira_lookup": {"env": ["JIRA_TOKEN"], "timeout_seconds": 60, "memory_bytes": 1073741824}}`.
    """
    secrets: dict[SecretName, SecretStr] = Field(default_factory=dict)
    """The values that agent definitions name in `credentials`: `FANOUT_SECRETS__GIT_TOKEN`. Workers
    need them, and put them into requests outside of the sandbox."""
    approvers: tuple[str, ...] = ()
    """The users of Redis whose answers to approvals count, as JSON, set for workers; empty: all."""
    tenants: dict[str, TenantShare] = Field(default_factory=dict)
    """JSON, or a table in TOML: `{"team-a": {"weight": 3, "jobs": 20}}`. Other tenants have
    weight 1."""

    @field_validator("state_dir", "agents_dir")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """Make a path from the environment absolute: child processes use it in other folders."""
        return path and path.expanduser().absolute()

    @field_validator("secrets", mode="before")
    @classmethod
    def _in_capitals(cls, secrets: Any) -> Any:
        """Return the secrets by names in capitals; the environment's arrive in lower case."""
        if not isinstance(secrets, dict):
            return secrets
        return {str(name).upper(): value for name, value in secrets.items()}

    @field_validator("secrets")
    @classmethod
    def _can_be_in_a_header(cls, secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in secrets.items():
            try:
                usable_value(value.get_secret_value())
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return secrets

    @field_validator("redis_url")
    @classmethod
    def _usable_url(cls, url: str | None) -> str | None:
        return None if url is None else check_redis_url(url)

    @property
    def blobs(self) -> str:
        """The blob store's URL, set or by default."""
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
        """Return the sources in order: arguments, environment, then the files."""
        del dotenv_settings, file_secret_settings
        files = [
            InitSettingsSource(settings_cls, values)
            for _, values in settings_of_files(settings_cls)
        ]
        return init_settings, env_settings, *files


def settings_of_files(settings_cls: type[BaseSettings]) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings that the configuration's files give, with the files' paths; first wins.

    Raises:
        UnusableConfiguration: A file cannot be read, or has another format than its name says.
    """
    found = configuration_file()
    if found is None:
        return []
    file = found.env
    try:
        env = DotEnvSettingsSource(settings_cls, env_file=file)()
        file = found.path
        toml = TomlConfigSettingsSource(settings_cls, toml_file=file)()
    except UnicodeDecodeError as error:
        raise UnusableConfiguration(f"{file}: {not_utf_8(error)}.") from None
    except ValueError as error:
        raise UnusableConfiguration(f"{file} cannot be read: {error}") from error
    for name in sorted(toml.keys() - settings_cls.model_fields.keys()):
        raise UnusableConfiguration(
            f"{found.path}:{line_of(found.path, [name])}: there is no setting {name!r}."
            f"{did_you_mean(name, settings_cls.model_fields)} `fanout config` lists all, as "
            "environment variables."
        )
    folder = found.path.parent
    given = [(str(found.env), _located(env, folder)), (str(found.path), _located(toml, folder))]
    if found.agents.is_dir():
        given.append((str(found.agents), {"agents_dir": str(found.agents)}))
    return given


def _located(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a file's settings with their relative paths made absolute: relative to its folder."""
    located = {
        name: str(folder / Path(value).expanduser())
        if name in _PATHS and isinstance(value, str)
        else _located(value, folder)
        if isinstance(value, dict)
        else value
        for name, value in values.items()
    }
    if isinstance(model := values.get("model"), str) and model.startswith(_SCRIPTED):
        located["model"] = f"{_SCRIPTED}{folder / model.removeprefix(_SCRIPTED)}"
    if isinstance(url := values.get("blobs_url"), str) and "://" not in url:
        located["blobs_url"] = (folder / url).as_uri()
    return located


def load_settings(**overrides: Any) -> Settings:
    """Read the settings, for a composition root, and export the keys of models in the `.env`.

    Args:
        overrides: Values of settings that replace those of all sources.

    Raises:
        InvalidSetting: A value is not allowed; the text names the setting, the value (unless it is
            a secret) and the allowed values.
    """
    try:
        export_keys()
        given = given_variables()
        if problems := misspelt(Settings, given):
            raise InvalidSetting("\n".join(problems))
        return Settings(**overrides)
    except ValidationError as error:
        found = configuration_file()
        toml = found.path if found and found.path.exists() else None
        raise InvalidSetting(sentences(Settings, error, given, toml)) from None
    except SettingsError as error:
        raise InvalidSetting(not_json(error, given)) from None
    except UnusableConfiguration as error:
        raise InvalidSetting(str(error)) from error


def without_password(url: str) -> str:
    """Return a URL with its password hidden, and its query, which may contain one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    query = f"?{HIDDEN}" if parts.query else ""
    user, sign, address = parts.netloc.rpartition("@")
    if sign:
        address = f"{user.partition(':')[0]}:{HIDDEN}@{address}"
    return f"{parts.scheme}://{address}{parts.path}{query}"
