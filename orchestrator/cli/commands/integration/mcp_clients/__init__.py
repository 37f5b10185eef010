"""The configuration files of MCP clients: where they are, and how an entry gets into them."""
