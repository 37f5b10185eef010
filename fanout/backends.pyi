# The public names of `fanout.backends`, each loaded when it is first used.

from .orchestrator.deep_agent import ArtifactBackend as ArtifactBackend
from .orchestrator.deep_agent import Backend as Backend
from .orchestrator.deep_agent import BackendEnvironment as BackendEnvironment
from .orchestrator.deep_agent import BackendFactory as BackendFactory
from .orchestrator.deep_agent import CompositeBackend as CompositeBackend
from .orchestrator.deep_agent import DirectoryBackend as DirectoryBackend
from .orchestrator.deep_agent import Entry as Entry
from .orchestrator.deep_agent import Execution as Execution
from .orchestrator.deep_agent import FilesystemBackend as FilesystemBackend
from .orchestrator.deep_agent import Hit as Hit
from .orchestrator.deep_agent import Hits as Hits
from .orchestrator.deep_agent import LocalShellBackend as LocalShellBackend
from .orchestrator.deep_agent import OverlayBackend as OverlayBackend
from .orchestrator.deep_agent import ReadOnlyBackend as ReadOnlyBackend
from .orchestrator.deep_agent import Shell as Shell
from .orchestrator.deep_agent import StateBackend as StateBackend
from .orchestrator.deep_agent import StoreBackend as StoreBackend
from .orchestrator.deep_agent import Walk as Walk
from .orchestrator.deep_agent import find_hits as find_hits
