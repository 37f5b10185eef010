"""The parent's side: submit jobs, wait for them, merge their changes, serve them to others.

The public names of this package; `__init__.pyi` lists them with the modules that define them:

- Jobs: `JobClient`, `JobSpec`, `Limits`, `JobResult`, `JobRecord`, `JobState`, `JobFailure`.
- Agents: `JobAgent`, `TaskToolset`, `create_deep_agent`, `create_deep_agent_async`,
  `create_deep_app`, `SubAgentSpec`, `SummarizationConfig`, `Middleware`, `McpServer`, `McpTools`.
- Approvals: `InterruptOn` (a policy), `Decision`, `ApprovalAnswer`, `pending_approvals`,
  `answers_message`.

Each name is loaded when it is first used: a program that only submits jobs does not import ADK.
Programs import these names from `fanout`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
