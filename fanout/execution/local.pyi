# The public names of `fanout.execution.local`, each loaded when it is first used.

from fanout.orchestrator.deep_agent import create_local_execute_tool as create_local_execute_tool
