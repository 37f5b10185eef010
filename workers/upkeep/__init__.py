"""A worker's background loops: reaper, retention, watchdog, warm-up."""
