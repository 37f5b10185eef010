"""Kernel 2: deep agents on ADK, over any backend. It imports nothing of ours and knows no jobs.

These names are public; `__init__.pyi` lists them with the modules that define them:

- Agents: `create_deep_agent`, `create_deep_agent_async`, `create_deep_app`, `SubAgentSpec`,
  `SubAgentLimits`, `DelegationStyle`, `TaskRecord`; `ExecutionChoice`, `ExecutionServer`,
  `create_local_execute_tool`.
- Files and shells: the protocols `Backend` and `Shell` with their results (`Entry`, `Walk`, `Hit`,
  `Hits`, `Execution`, `LeftRunning`); `StateBackend`, `DirectoryBackend`,
  `FilesystemBackend`,
  `LocalShellBackend`, `CompositeBackend`,
  `OverlayBackend`, `ReadOnlyBackend`, `ArtifactBackend`, `StoreBackend`, `BackendEnvironment`.
- Models: `resolve_model`, `key_variable`, `access_fault`, `service_faults`,
  `service_name`, `preload_client`, `ResilientModel`,
  `RetryPolicy`, `ModelProgress` with `watched_by`, `try_model` with its `Trial`, `ModelUsage`,
  `price`, and `ScriptedModel` with its `Script` for runs without a model.
- For tools of your own: `MethodTool`, `ProgressTool`, `tabular`, `polling`, `budget_of`,
  `reply_usage`, `text_of_html`, `text_of_pdf`, and `search_request` with `searching`, a model's own
  web search.
- Limits: `Budget`, `BudgetLimits`, `BudgetFactory`, `Account`, `Accounts`, `Reservations` with
  `reserving`, `SummarizationConfig`, `OutputSchema`, `LoopPolicy`, `LoopLimits`.
- Permissions: `Permission`, and the `Access` that its predicate gets.
- Approvals: `PendingApproval`, `pending_approvals`, `answers_message`; their vocabulary is
  `orchestrator.approvals`.
- MCP: `McpServer`, `McpTools`.
- Failures: `ModelFailed`, `McpServerFailed`, `ModelNotConfigured`, `ToolMistake`, and their
  subclasses.
- For extensions: `Middleware`, with the hooks of every ability of an agent, and `StateSlot` for its
  own state.
- For what runs agents (the coordinator and the worker): `TaskTools` over the port `Tasks`, and the
  functions that read and repair a conversation's events.

Each name is loaded when it is first used: importing this package does not import ADK, which takes
seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
