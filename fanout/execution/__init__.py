"""Where an agent's commands run: functions beside `create_deep_agent(execution=…)`."""
