from .credential import Credential
from .docker.naming import COMMAND
from .docker.provider import DEFAULT_IMAGE, DockerProvider
from .egress.uplink import AllowedHosts
from .environment import EnvironmentRecord, EnvironmentRequest, Environments, SetupStep
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
from .model_meter import ModelMeter
from .protocol import (
    WORKSPACE,
    Command,
    ConnectionRecord,
    NetworkLimitReached,
    Process,
    ProcessEnded,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    SnapshotSource,
    TrafficRecord,
)

__all__ = [
    "COMMAND",
    "DEFAULT_IMAGE",
    "WORKSPACE",
    "AllowedHosts",
    "Command",
    "ConnectionRecord",
    "Credential",
    "DiskLimitExceeded",
    "DockerProvider",
    "EngineForbidden",
    "EngineUnavailable",
    "EnvironmentRecord",
    "EnvironmentRequest",
    "Environments",
    "FilesMissing",
    "HostFault",
    "ImageMissing",
    "KnownFiles",
    "LazySandbox",
    "LocalProvider",
    "ModelMeter",
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
    "SetupStep",
    "SnapshotSource",
    "SnapshotUnusable",
    "TrafficRecord",
    "in_folder",
    "merge_into",
]
