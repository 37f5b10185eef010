"""The tools that definitions name besides the built-in ones, as an agent of a job gets them.

They run in the worker: `web_search` and `web_fetch` with its network, to checked addresses, and an
operator's own tools as processes of its machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from google.adk.tools.base_tool import BaseTool

from ..configuration.known_names import WEB_TOOLS
from ..configuration.tool_settings import PythonToolSettings, WebSettings
from ..deep_agent import resolve_model, searching
from ..delegation.agents import NamedTools
from ..jobs.failures import InvalidJob
from .python_tools.tool import PythonTools
from .web.fetch import WebFetch
from .web.search import SearchApi, WebSearch

NO_WEB = "FANOUT_WEB__HOSTS is none"
NO_SEARCH = (
    "the model has no search of its own, and there is no search service (FANOUT_WEB__SEARCH)"
)
OWN_SEARCH_OFF = (
    "FANOUT_WEB__OWN_SEARCH is false, and there is no search service (FANOUT_WEB__SEARCH)"
)


class ToolMaker:
    """Makes the named tools of agents.

    Args:
        web: The settings of the web tools.
        python: Those of an operator's own tools, by name.
    """

    def __init__(self, web: WebSettings, python: Mapping[str, PythonToolSettings]) -> None:
        self._web = web
        self._python = PythonTools(python)

    async def make(self, names: Collection[str], model: str) -> NamedTools:
        """Return the tools with these names for one agent.

        Args:
            names: Names of tools, of which none is built in.
            model: The name of the agent's model.

        Raises:
            InvalidJob: An operator's tool is not installed, or cannot be used.
        """
        tools: list[BaseTool] = []
        left_out: dict[str, str] = {}
        for name in names:
            if name not in WEB_TOOLS:
                tools.append(await self._python.make(name))
            elif why := self.absence(name, model):
                left_out[name] = why
            elif name == "web_fetch":
                tools.append(self._fetch().tool())
            else:
                api = None if has_own_search(self._web, model) else search_api(self._web)
                tools.append(WebSearch(api).tool())
        return NamedTools(tuple(tools), left_out)

    def absence(self, name: str, model: str) -> str:
        """Return why an agent has no web tool of this name; empty if it has it.

        Args:
            name: One of `WEB_TOOLS`.
            model: The name of the agent's model.
        """
        web = self._web
        if web.hosts == "none":
            return NO_WEB
        if name == "web_fetch" or has_own_search(web, model) or search_api(web) is not None:
            return ""
        return NO_SEARCH if web.own_search else OWN_SEARCH_OFF

    async def fault(self, name: str) -> str:
        """Return why an installed tool cannot be used; empty if it can."""
        try:
            await self._python.make(name)
        except InvalidJob as error:
            return str(error)
        return ""

    def _fetch(self) -> WebFetch:
        hosts = self._web.hosts
        return WebFetch(
            hosts=hosts if isinstance(hosts, tuple) else None,
            allowed_hosts=self._web.allowed_hosts,
            ca_file=self._web.ca_file,
        )


def has_own_search(web: WebSettings, model: str) -> bool:
    """Return whether the service of a model searches for it, and may."""
    if not web.own_search:
        return False
    resolved = resolve_model(model, agent_name="", needs_key=False)
    return searching(resolved) is not None


def search_api(web: WebSettings) -> SearchApi | None:
    """Return the search service of the settings; None for none."""
    key = None if web.search_key is None else web.search_key.get_secret_value()
    if web.search == "searxng":
        url = urlsplit(web.search_url or "")
        return SearchApi(
            url=f"{web.search_url}/search?q={{query}}&format=json",
            snippet="content",
            allowed_hosts=(url.netloc,),
            ca_file=web.ca_file,
        )
    if web.search == "brave":
        base = web.search_url or BRAVE
        return SearchApi(
            url=f"{base}/res/v1/web/search?q={{query}}&count={{count}}",
            key=key,
            key_header="X-Subscription-Token",
            results="web.results",
            allowed_hosts=(urlsplit(base).netloc,) if web.search_url else (),
            ca_file=web.ca_file,
        )
    return None


BRAVE = "https://api.search.brave.com"
"""The address of Brave's search."""
