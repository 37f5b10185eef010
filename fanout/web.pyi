# The public names of `fanout.web`, each loaded when it is first used.

from .orchestrator.extras import SearchApi as SearchApi
from .orchestrator.extras import Think as Think
from .orchestrator.extras import WebFetch as WebFetch
from .orchestrator.extras import WebSearch as WebSearch
