"""Where an agent's files are and its commands run: an argument of `create_deep_agent`.

- In the session: `StateBackend`; as artifacts of ADK `ArtifactBackend`, and `StoreBackend`, which
  a user's sessions share. On this machine: `FilesystemBackend`, a folder as `/`;
  `DirectoryBackend`, a folder at a path of your choice; `LocalShellBackend`, with a shell.
- Of others: `CompositeBackend`, several as one; `OverlayBackend`, with changes kept aside;
  `ReadOnlyBackend`; `BackendEnvironment`, as ADK's environment.
- Your own: the protocols `Backend` and `Shell`, what they return (`Entry`, `Walk`, `Hit`, `Hits`,
  `Execution`), `find_hits`, which searches a content, and `BackendFactory`, which finds a backend
  in a session's state.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
