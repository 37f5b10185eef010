"""The agent in an attempt: its model, tools, children and journal."""
