# The doors of the jobs of remote agents and of coding agents, each loaded when it is first used.

from .coding_agents.coding_agent import CodingAgentJob as CodingAgentJob
from .remote_agents.abandoned import AbandonedTasks as AbandonedTasks
from .remote_agents.remote_agent import RemoteAgent as RemoteAgent
