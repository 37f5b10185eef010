"""Jobs for coding agents that speak the Model Context Protocol (MCP)."""
