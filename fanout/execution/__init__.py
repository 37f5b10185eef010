"""Where an agent's commands run: functions in addition to `create_deep_agent(execution=…)`."""
