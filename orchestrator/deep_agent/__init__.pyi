# The public names of `orchestrator.deep_agent`; each is loaded when it is first used.

# Approvals by people
from .approval import AWAITING as AWAITING
from .approval import PendingApproval as PendingApproval
from .approval import answers_message as answers_message
from .approval import confirmation_answers as confirmation_answers
from .approval import confirmation_calls as confirmation_calls
from .approval import confirmation_request as confirmation_request
from .approval import pending_approvals as pending_approvals
from .approval import read_answer as read_answer

# The factory
from .assembly import DEFAULT_MODEL as DEFAULT_MODEL

# Files and shells that an agent works on
from .backends.artifact_store import ArtifactBackend as ArtifactBackend
from .backends.artifact_store import StoreBackend as StoreBackend
from .backends.bounded_run import run_bounded as run_bounded
from .backends.command_result import LeftProcess as LeftProcess
from .backends.command_result import LeftRunning as LeftRunning
from .backends.command_result import OutputFile as OutputFile
from .backends.composite import CompositeBackend as CompositeBackend
from .backends.composite import ReadOnlyBackend as ReadOnlyBackend
from .backends.directory import DirectoryBackend as DirectoryBackend
from .backends.directory import FilesystemBackend as FilesystemBackend
from .backends.environment import BackendEnvironment as BackendEnvironment
from .backends.local_shell import LocalShellBackend as LocalShellBackend
from .backends.matching import find_hits as find_hits
from .backends.matching import real_path as real_path
from .backends.overlay import OverlayBackend as OverlayBackend
from .backends.protocol import Backend as Backend
from .backends.protocol import BackendFactory as BackendFactory
from .backends.protocol import Entry as Entry
from .backends.protocol import EntryKind as EntryKind
from .backends.protocol import Execution as Execution
from .backends.protocol import Hit as Hit
from .backends.protocol import Hits as Hits
from .backends.protocol import OutputSink as OutputSink
from .backends.protocol import Shell as Shell
from .backends.protocol import Walk as Walk
from .backends.state import DictState as DictState
from .backends.state import StateBackend as StateBackend

# Budgets, guards and the final answer's schema
from .budget import Account as Account
from .budget import Accounts as Accounts
from .budget import Budget as Budget
from .budget import BudgetFactory as BudgetFactory
from .budget import BudgetLimits as BudgetLimits
from .budget import budget_of as budget_of
from .budget import exceeded as exceeded
from .budget import limit_reached as limit_reached
from .budget import usage_of as usage_of
from .context.compaction import ContextSummary as ContextSummary
from .context.compaction import ConversationStats as ConversationStats
from .context.compaction import context_stats as context_stats
from .context.compaction import context_summary as context_summary

# Long conversations
from .context.compaction import later_than as later_than
from .context.summarization import SummarizationConfig as SummarizationConfig
from .create import create_deep_agent as create_deep_agent
from .create import create_deep_agent_async as create_deep_agent_async
from .create import create_deep_app as create_deep_app
from .create import settle_results as settle_results
from .dangling_calls import DanglingCall as DanglingCall
from .dangling_calls import answered as answered
from .dangling_calls import unanswered_calls as unanswered_calls

# Sub-agents in this process, and calls with deferred results
from .delegation.bounded_results import MAX_RESULT_TOKENS as MAX_RESULT_TOKENS
from .delegation.bounded_results import bounded_contents as bounded_contents
from .delegation.child import task_message as task_message
from .delegation.deferred import DeferredCall as DeferredCall
from .delegation.deferred import deferred_calls as deferred_calls
from .delegation.deferred import deferred_result as deferred_result
from .delegation.deferred import results_event as results_event
from .delegation.inherited_conversation import Inherit as Inherit
from .delegation.inherited_conversation import conversation_of_call as conversation_of_call
from .delegation.inherited_conversation import inherited_conversation as inherited_conversation
from .delegation.roster import SubAgentLimits as SubAgentLimits
from .delegation.roster import SubAgentSpec as SubAgentSpec

# Helpers for tools and parts of an agent
from .delegation.roster import agent_identifier as agent_identifier
from .delegation.task_record import TaskRecord as TaskRecord
from .delegation.task_record import TaskResult as TaskResult
from .delegation.task_record import combined_answer as combined_answer
from .delegation.task_tools import DelegationStyle as DelegationStyle
from .delegation.task_tools import DelegationTexts as DelegationTexts
from .delegation.task_tools import Emit as Emit
from .delegation.task_tools import SubagentType as SubagentType
from .delegation.task_tools import Tasks as Tasks
from .delegation.task_tools import TaskSteps as TaskSteps
from .delegation.task_tools import TaskTools as TaskTools
from .delegation.task_tools import first_fault as first_fault
from .delegation.task_tools import task_refusal as task_refusal
from .delegation.task_tools import with_progress as with_progress

# Where an agent's commands and code run, if not on its backend
from .execution import ExecutionChoice as ExecutionChoice
from .execution import ExecutionServer as ExecutionServer
from .execution import create_local_execute_tool as create_local_execute_tool

# Failures
from .failures import AmbiguousTool as AmbiguousTool
from .failures import BudgetUsedUp as BudgetUsedUp
from .failures import ClosedAccess as ClosedAccess
from .failures import McpServerFailed as McpServerFailed
from .failures import McpServerUnresponsive as McpServerUnresponsive
from .failures import ModelContextExceeded as ModelContextExceeded
from .failures import ModelDenied as ModelDenied
from .failures import ModelFailed as ModelFailed
from .failures import ModelNotConfigured as ModelNotConfigured
from .failures import ModelNotOpen as ModelNotOpen
from .failures import ModelRefused as ModelRefused
from .failures import ModelUnresponsive as ModelUnresponsive
from .failures import ScriptFailed as ScriptFailed
from .failures import ToolMistake as ToolMistake
from .failures import UnknownGuardedTool as UnknownGuardedTool

# Messages to a running agent
from .inbox import NUMBER_KEY as NUMBER_KEY
from .inbox import message_number as message_number
from .inbox import without_message_number as without_message_number
from .interruptible_tools import in_own_loop as in_own_loop
from .loop_guard import REPEATED_CALL as REPEATED_CALL
from .loop_guard import LoopLimits as LoopLimits
from .loop_guard import LoopPolicy as LoopPolicy
from .mcp.schemas import shown_schema as shown_schema

# Tools of MCP servers
from .mcp.server import McpServer as McpServer
from .mcp.tools import McpTools as McpTools

# Memory and skills
from .memory import memory_fault as memory_fault
from .messages import event_with_call as event_with_call

# The text of messages
from .messages import is_reply as is_reply
from .messages import last_reply as last_reply
from .messages import summary_of as summary_of
from .messages import text_of as text_of
from .middleware import Middleware as Middleware
from .middleware import StateSlot as StateSlot
from .models.access import access_fault as access_fault
from .models.access import service_faults as service_faults
from .models.access import service_name as service_name

# Models, their retries, usage and prices
from .models.facts import ModelProfile as ModelProfile
from .models.facts import price as price
from .models.own_search import search_request as search_request
from .models.own_search import searching as searching
from .models.progress import ModelProgress as ModelProgress
from .models.progress import watched_by as watched_by
from .models.rate_limiter import RateLimiter as RateLimiter
from .models.replies import say_ending as say_ending
from .models.reserved_requests import LEAST_OUTPUT_TOKENS as LEAST_OUTPUT_TOKENS
from .models.reserved_requests import Reservations as Reservations
from .models.reserved_requests import reserving as reserving
from .models.resolve import Trial as Trial
from .models.resolve import key_variable as key_variable
from .models.resolve import preload_client as preload_client
from .models.resolve import resolve_model as resolve_model
from .models.resolve import try_model as try_model
from .models.retries import FALLBACK_FROM as FALLBACK_FROM
from .models.retries import ResilientModel as ResilientModel
from .models.retries import RetryPolicy as RetryPolicy
from .models.scripted_model import Conversation as Conversation
from .models.scripted_model import Script as Script
from .models.scripted_model import ScriptedCall as ScriptedCall
from .models.scripted_model import ScriptedModel as ScriptedModel
from .models.scripted_model import ScriptedReply as ScriptedReply
from .models.states import AccessStates as AccessStates
from .models.states import FailedRequest as FailedRequest
from .models.states import ModelAccess as ModelAccess
from .models.states import asked_through as asked_through
from .models.states import model_accesses as model_accesses
from .models.tokens import ModelUsage as ModelUsage
from .models.tokens import note_side_calls as note_side_calls
from .models.tokens import reply_usage as reply_usage
from .models.tokens import side_calls as side_calls

# Permissions
from .permissions import Access as Access
from .permissions import Permission as Permission
from .prompts import ANSWER_REJECTED as ANSWER_REJECTED
from .prompts import CHANGES_BREAK as CHANGES_BREAK
from .prompts import CHANGES_CONFLICT as CHANGES_CONFLICT
from .prompts import CONTINUED as CONTINUED
from .prompts import TASKS_VERIFIED as TASKS_VERIFIED
from .prompts import WORKSPACE_RESTORED as WORKSPACE_RESTORED
from .skills import is_skill_file as is_skill_file
from .skills import skill_fault as skill_fault
from .structured_output import OutputMismatch as OutputMismatch
from .structured_output import OutputSchema as OutputSchema
from .tool import MethodTool as MethodTool
from .tool import ProgressTool as ProgressTool
from .tool import about_tasks as about_tasks
from .tool import error_result as error_result
from .tool import polling as polling
from .tool import tabular as tabular
from .tools.documents import text_of_html as text_of_html
from .tools.documents import text_of_pdf as text_of_pdf
from .tools.execute import text_mode as text_mode
from .tools.execute import with_ended_processes as with_ended_processes
from .unusable_replies import REPLY_ERRORS as REPLY_ERRORS
