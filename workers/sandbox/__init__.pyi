from .docker.provider import DEFAULT_IMAGE, DockerProvider
from .errors import (
    DiskLimitExceeded,
    EngineForbidden,
    EngineUnavailable,
    FilesMissing,
    HostFault,
    ImageMissing,
    SandboxDied,
    SandboxNotSecluded,
    SandboxStartFailed,
    SnapshotUnusable,
)
from .lazy import KnownFiles, LazySandbox
from .local.provider import LocalProvider
from .merge_target import SandboxFolder, in_folder, merge_into
from .network import ConnectionRecord, Credential, NetworkLimitReached, TrafficRecord
from .process import Process, ProcessEnded
from .protocol import (
    WORKSPACE,
    Command,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    SnapshotSource,
)

__all__ = [
    "DEFAULT_IMAGE",
    "WORKSPACE",
    "Command",
    "ConnectionRecord",
    "Credential",
    "DiskLimitExceeded",
    "DockerProvider",
    "EngineForbidden",
    "EngineUnavailable",
    "FilesMissing",
    "HostFault",
    "ImageMissing",
    "KnownFiles",
    "LazySandbox",
    "LocalProvider",
    "NetworkLimitReached",
    "Process",
    "ProcessEnded",
    "Sandbox",
    "SandboxDied",
    "SandboxFolder",
    "SandboxNotSecluded",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxStartFailed",
    "SnapshotSource",
    "SnapshotUnusable",
    "TrafficRecord",
    "in_folder",
    "merge_into",
]
