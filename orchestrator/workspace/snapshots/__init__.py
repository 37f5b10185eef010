"""The snapshots of a folder: which files one has, its archive, and what was changed since."""
