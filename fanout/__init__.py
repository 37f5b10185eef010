"""The public door: the names that programs import.

- Jobs: `JobClient` submits a `JobSpec` (an agent, a task, `Limits`) and returns its `JobResult`;
  `JobRecord` and `JobState` say how a job is doing; `JobFailure` is the base of what it raises.
- Agents for any ADK Runner: `JobAgent`, whose messages are jobs; `create_deep_agent`,
  `create_deep_agent_async` and `create_deep_app` in this process, with `SubAgentSpec` for
  sub-agents, `TaskToolset` for tasks that are jobs, `SummarizationConfig`, `Middleware` for
  abilities of your own, and `McpTools` of an `McpServer`; files and shells: `fanout.backends`.
- Approvals: `InterruptOn` (a policy), `Decision`, `ApprovalAnswer`; of an agent in this process
  `pending_approvals` in its events, and `answers_message`, which resumes it.

    from fanout import JobClient, JobSpec

    client = JobClient.from_settings()
    result = await client.run(JobSpec(agent="researcher", description="…"), workspace=Path("."))

Each name is loaded when it is first used, so that importing this package takes no time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
