# The public names of `fanout`, of jobs and agents, each loaded when it is first used.

from .orchestrator import ApprovalAnswer as ApprovalAnswer
from .orchestrator import Decision as Decision
from .orchestrator import InterruptOn as InterruptOn
from .orchestrator import JobAgent as JobAgent
from .orchestrator import JobClient as JobClient
from .orchestrator import JobFailure as JobFailure
from .orchestrator import JobRecord as JobRecord
from .orchestrator import JobResult as JobResult
from .orchestrator import JobSpec as JobSpec
from .orchestrator import JobState as JobState
from .orchestrator import Limits as Limits
from .orchestrator import McpServer as McpServer
from .orchestrator import McpTools as McpTools
from .orchestrator import Middleware as Middleware
from .orchestrator import SubAgentSpec as SubAgentSpec
from .orchestrator import SummarizationConfig as SummarizationConfig
from .orchestrator import TaskToolset as TaskToolset
from .orchestrator import answers_message as answers_message
from .orchestrator import create_deep_agent as create_deep_agent
from .orchestrator import create_deep_agent_async as create_deep_agent_async
from .orchestrator import create_deep_app as create_deep_app
from .orchestrator import pending_approvals as pending_approvals
