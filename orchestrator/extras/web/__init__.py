"""Tools for research on the web: `web_search`, `web_fetch`, and `think` between two steps.

- `client.py`: connections to checked addresses, and bounded answers.
- `fetch.py`: `WebFetch`, pages as text.
- `search.py`: `WebSearch`, by the model's own search or a service.
- `think.py`: `Think`.

They run where the agent's loop runs, with that process's network. `extras/named_tools.py` makes
those of the agents of jobs.
"""
