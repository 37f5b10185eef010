"""Migrate modules, each with the first of several attempts that passes its tests.

modules: a pattern such as src/**/*.py, or a list of paths
goal: what is to be done to each module, in plain language
verify: the command that has to pass; default: python3 -m unittest
attempts: how many agents try each module at the same time; default: 3
"""

import asyncio


async def migrated(path, verify, attempts):
    return await best_of(
        attempts,
        f"{inputs['goal']}: do this to {path}, and to nothing else. Keep its behaviour.",
        agent="refactorer",
        verify=verify,
        label=f"migrate {path}",
        check=False,
    )


async def main():
    modules = inputs["modules"]
    paths = await files(modules) if isinstance(modules, str) else modules
    verify = inputs.get("verify", "python3 -m unittest")
    attempts = inputs.get("attempts", 3)
    phase("Migrate")
    log(f"{len(paths)} modules, {attempts} attempts each")
    results = await asyncio.gather(*[migrated(path, verify, attempts) for path in paths])
    phase("Check")
    check = await run(verify)
    return {
        "migrated": [path for path, one in zip(paths, results) if one.ok],
        "failed": [
            {"path": path, "why": one.error} for path, one in zip(paths, results) if not one.ok
        ],
        "passes_together": check.exit_code == 0,
    }
