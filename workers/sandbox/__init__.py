"""Where a job's commands run and its files live: Docker containers, or folders of this machine.

The public door of the folder: the rest of `workers` imports from here and from nowhere below. A
name is loaded when it is first used, so that importing a module below this one, for example
`workers.sandbox.inside.frames`, loads neither docker-py nor the agent's libraries.

A worker makes one `SandboxProvider` (`DockerProvider` or `LocalProvider`) and opens a `Sandbox`
with a `SandboxSpec` for each attempt. A `Sandbox` is a deep agent's backend with a shell; it also
runs a `Command`, starts a `Process` and collects the job's changes. `merge_into` merges another
job's changes into it, `in_folder` does other work on its files. The failures are listed in
`workers.sandbox.errors`.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
