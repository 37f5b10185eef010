"""The proxy through which a sandbox reaches the hosts that it may."""
