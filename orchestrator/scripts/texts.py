"""What models and lists read about scripts."""

from __future__ import annotations

A_SCRIPT = "A script"
"""What lists show of a script that does not say what it does."""

VOCABULARY = """\
A script calls agents and keeps their results in variables; its last expression, or what main() \
returns, is its value and has to be JSON. It calls:

    await agent(task, agent="general-purpose", context="", output_schema=None, verify="", label="",
                files="land", check=True)   # runs an agent, which sees nothing but task and context
    start(task, ...) -> handle; await first([handle, ...]); await asyncio.gather(agent(...), ...)
    await best_of(3, task, verify="pytest -q", judge="")    # the first that passes
    await read(path); await files("src/**/*.py"); await run("pytest -q")    # .ok .exit_code .output
    await land(result)    # of files="keep"; files="discard" drops an agent's changes
    await ask("Release it?", options=["yes", "no"])    # a person decides
    phase("Review"); log(text); inputs["name"]; await budget()    # .used .left

A result has .ok .state .summary .output (the value of output_schema) .error .files .verified. A job \
that does not succeed raises AgentFailed, or with check=False is a result with .ok == False. All \
agents of a phase start from the files at its beginning; their changes land at its end.

Of Python it has asyncio.gather, comprehensions, functions, plain classes and dataclasses, re, json, \
math, itertools, collections. It has no create_task, yield, inheritance, files, network or clock."""
"""What a model has to know to write a script."""
