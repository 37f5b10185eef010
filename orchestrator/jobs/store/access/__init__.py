"""Who may use the service, in Redis: keys, browser sessions, the audit log."""
