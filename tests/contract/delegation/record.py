"""`python -m tests.contract.delegation.record` writes what models are shown of delegation.

For each configuration: the tools that delegate, as the request to a scripted model has them; what
the agent's instruction says about them; and the answers to calls that are wrong.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import Field

from fanout.orchestrator.adk.task_toolset import TaskToolset
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition, AgentDefinitions
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.deep_agent import ModelUsage, SubAgentSpec
from fanout.workers.agent.delegation.children import Children
from fanout.workers.agent.services import JobServices
from tests.builders import make_spec
from tests.integration.scripts import call, says
from tests.unit.deep_agent.running import Run, scripted

RECORDED = Path(__file__).parent / "recorded"

LIMITS = Settings().limits

WRONG_ITEMS: list[dict[str, Any]] = [
    {},
    {"description": 5},
    {"description": "go", "deadline": 5},
    {"description": "  "},
    {"description": "go", "subagent_type": "nobody"},
    {"description": "go", "agent_type": "nobody"},
    {"description": "go", "agent_type": "helper", "subagent_type": "nobody"},
]
WRONG_CALLS = [
    call("tasks", tasks=WRONG_ITEMS),
    call("tasks", tasks="go"),
    call("task", description=" "),
    call("task", description="go", subagent_type="nobody"),
    call("task", description="go", agent_type="nobody", context=None),
    call("task", description="go", deadline=5),
    call("task", description="go", timeout_seconds=-1, subagent_type="nobody"),
    call("task"),
    call("helper", description=" "),
    call("helper", description="go", subagent_type="helper"),
    call("start_task", description=" "),
    call("start_task", description="go", subagent_type="nobody"),
    call("start_task", description="go", verify=5),
    call("wait_tasks", task_ids="x"),
    call("update_task", task_id="x"),
]


def agent(name: str, **fields: Any) -> AgentDefinition:
    return AgentDefinition(
        name=name, description=f"Does what a {name} does.", instruction="Work.", **fields
    )


def definitions(lead: AgentDefinition) -> AgentDefinitions:
    known = (lead, agent("helper"), agent("qa-engineer"), agent("general-purpose"))
    return AgentDefinitions({one.name: one for one in known})


class Caller(BaseLlm):
    """A model that makes every wrong call of the tools that it has, all in its first reply."""

    model: str = "scripted:caller"
    requests: list[LlmRequest] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Make the calls, and then say that it is done."""
        del stream
        is_first = not self.requests
        self.requests.append(
            llm_request.model_copy(update={"contents": list(llm_request.contents)})
        )
        names = {one.name for one in self.declarations} if is_first else set()
        parts = [
            types.Part(
                function_call=types.FunctionCall(
                    id=f"call-{number}", name=one["tool"], args=one["args"]
                )
            )
            for number, one in enumerate(WRONG_CALLS)
            if one["tool"] in names
        ]
        yield LlmResponse(
            content=types.Content(role="model", parts=parts or [types.Part(text="done")])
        )

    @property
    def declarations(self) -> list[types.FunctionDeclaration]:
        """The tools of the first request."""
        tools: Sequence[Any] = self.requests[0].config.tools or []
        return [one for tool in tools for one in tool.function_declarations or []]

    @property
    def instruction(self) -> list[str]:
        """The lines of the first request's instruction."""
        return str(self.requests[0].config.system_instruction).splitlines()

    @property
    def answers(self) -> list[Any]:
        """The answers to the wrong calls, without the times of the run."""
        found = (
            {"tool": part.function_response.name, "answer": part.function_response.response}
            for content in self.requests[-1].contents
            for part in content.parts or []
            if part.function_response is not None
        )
        text = json.dumps([*found])
        return list(json.loads(re.sub(r'("execution_[a-z]+": )[\d.e-]+', r"\g<1>0", text)))


async def of_program(delegation: Any = "task", **fields: Any) -> Caller:
    """What the model of a program's agent is asked, whose tasks are jobs."""
    client: Any = SimpleNamespace(definitions=definitions(agent("lead", **fields)))
    tools = TaskToolset(client, Path("/nowhere"), agent="lead", delegation=delegation)
    return await asked(tools=[tools], instruction=f"Coordinate.\n\n{tools.instruction}")


async def of_job(**fields: Any) -> Caller:
    """What the model of an agent on a worker is asked."""
    lead = agent("lead", **fields)
    nothing: Any = SimpleNamespace(home="/home/agent")
    services = JobServices(
        ledger=nothing,
        journal=nothing,
        blobs=nothing,
        definitions=definitions(lead),
        defaults=LIMITS.for_jobs(),
        bounds=LIMITS.tree_bounds(),
    )
    children = Children(
        services,
        make_spec(agent="lead"),
        lead,
        sandbox=nothing,
        journal=nothing,
        lease=nothing,
        max_reworks=1,
        ends_at=math.inf,
        used=ModelUsage,
    )
    return await asked(
        tools=children.tools(),
        instruction=f"Work.{children.instruction()}",
        built_in_tools=lead.tools,
        delegation=None,  # as for all jobs
    )


async def asked(model: Caller | None = None, **options: Any) -> Caller:
    """Run an agent that makes the wrong calls; return its model, which keeps the requests."""
    caller = model or Caller()
    await Run(caller, **options).to_end()
    return caller


async def child_with_children() -> Caller:
    """What the model of a sub-agent is asked that may call others."""
    child = Caller()
    middle = SubAgentSpec(
        name="middle", description="Divides work.", model=child, subagents=[HELPER]
    )
    replies = [{"calls": [call("task", description="go", subagent_type="middle")]}, says("done")]
    await Run(scripted(replies), subagents=[middle]).to_end()
    return child


HELPER = SubAgentSpec(name="helper", description="Helps.")
FORK = SubAgentSpec(name="qa-engineer", description="Tests.", context="fork")
READY = LlmAgent(name="ready_agent", description="Was made elsewhere.", model="gemini-2.5-flash")

CONFIGURATIONS: dict[str, Callable[[], Awaitable[Caller]]] = {
    "program": of_program,
    "program-named-agents": lambda: of_program(subagents=["helper", "qa-engineer"]),
    "program-agent-tools": lambda: of_program("agent_tools", subagents=["helper", "qa-engineer"]),
    "job-without-agents": of_job,
    "job": lambda: of_job(subagents=["helper", "qa-engineer"]),
    "job-agent-tools": lambda: of_job(subagents=["helper"], delegation="agent_tools"),
    "job-verified": lambda: of_job(subagents=["helper"], verify_merges="make test"),
    "job-few-tools": lambda: of_job(subagents=["helper"], tools=["read_file"]),
    "in-process": asked,
    "in-process-subagents": lambda: asked(subagents=[HELPER, FORK]),
    "in-process-ready": lambda: asked(subagents=[READY, HELPER]),
    "in-process-agent-tools": lambda: asked(subagents=[HELPER, READY], delegation="agent_tools"),
    "in-process-child": child_with_children,
    "in-process-none": lambda: asked(delegation=None),
}


async def view(name: str) -> str:
    """Return what the model of a configuration is shown of delegation, an entry a line."""
    model, plain = await CONFIGURATIONS[name](), await asked(delegation=None)
    known = {one.name for one in plain.declarations}
    shown: dict[str, list[Any]] = {
        "tool": [
            one.model_dump(mode="json", exclude_none=True)
            for one in model.declarations
            if one.name not in known
        ],
        "line": [line for line in model.instruction if line not in plain.instruction],
        "answer": model.answers,
    }
    return "".join(
        f"{kind}: {json.dumps(entry, ensure_ascii=False)}\n"
        for kind, entries in shown.items()
        for entry in entries
    )


async def record() -> None:
    """Write what the code shows now."""
    RECORDED.mkdir(exist_ok=True)
    for name in CONFIGURATIONS:
        (RECORDED / f"{name}.txt").write_text(await view(name), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(record())
