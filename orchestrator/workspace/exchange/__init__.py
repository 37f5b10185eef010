"""Files that arrive or leave as archives, and those that are cloned from Git."""
