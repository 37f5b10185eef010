"""The service: jobs over HTTP, A2A and MCP, and a page, as views of the ledger and the journals."""
