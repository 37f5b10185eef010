# The door of the jobs of remote agents, loaded when it is first used.

from .remote_agents.abandoned import AbandonedTasks as AbandonedTasks
from .remote_agents.remote_agent import RemoteAgent as RemoteAgent
