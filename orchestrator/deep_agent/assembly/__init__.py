"""How an agent is put together from the arguments of `create_deep_agent`."""
