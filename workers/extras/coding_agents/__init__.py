"""The jobs of coding agents: programs in the sandbox that speak the Agent Client Protocol."""
