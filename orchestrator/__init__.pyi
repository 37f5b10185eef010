# The public names of `orchestrator`; `__init__.py` loads each from here when it is first used.

from .adk.job_agent import JobAgent as JobAgent
from .adk.task_toolset import TaskToolset as TaskToolset
from .approvals import ApprovalAnswer as ApprovalAnswer
from .approvals import Decision as Decision
from .approvals import InterruptOn as InterruptOn
from .client import JobClient as JobClient
from .deep_agent import McpServer as McpServer
from .deep_agent import McpTools as McpTools
from .deep_agent import Middleware as Middleware
from .deep_agent import SubAgentSpec as SubAgentSpec
from .deep_agent import SummarizationConfig as SummarizationConfig
from .deep_agent import answers_message as answers_message
from .deep_agent import create_deep_agent as create_deep_agent
from .deep_agent import create_deep_agent_async as create_deep_agent_async
from .deep_agent import create_deep_app as create_deep_app
from .deep_agent import pending_approvals as pending_approvals
from .jobs.failures import JobFailure as JobFailure
from .jobs.result import JobResult as JobResult
from .jobs.spec import JobSpec as JobSpec
from .jobs.spec import Limits as Limits
from .jobs.state import JobRecord as JobRecord
from .jobs.state import JobState as JobState
