"""Where a deep agent's file tools read and write."""
