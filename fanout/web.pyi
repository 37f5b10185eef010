# The public names of `fanout.web`, each loaded when it is first used.

from .orchestrator.deep_agent import SearchApi as SearchApi
from .orchestrator.deep_agent import Think as Think
from .orchestrator.deep_agent import WebFetch as WebFetch
from .orchestrator.deep_agent import WebSearch as WebSearch
