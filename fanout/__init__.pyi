# The public names of `fanout`: those of `orchestrator`.

from fanout.orchestrator import ApprovalAnswer as ApprovalAnswer
from fanout.orchestrator import Decision as Decision
from fanout.orchestrator import InterruptOn as InterruptOn
from fanout.orchestrator import JobAgent as JobAgent
from fanout.orchestrator import JobClient as JobClient
from fanout.orchestrator import JobFailure as JobFailure
from fanout.orchestrator import JobRecord as JobRecord
from fanout.orchestrator import JobResult as JobResult
from fanout.orchestrator import JobSpec as JobSpec
from fanout.orchestrator import JobState as JobState
from fanout.orchestrator import Limits as Limits
from fanout.orchestrator import TaskToolset as TaskToolset
from fanout.orchestrator import create_deep_agent as create_deep_agent
from fanout.orchestrator import create_deep_app as create_deep_app
