"""The proxy through which a sandbox reaches the hosts that its job may reach."""
