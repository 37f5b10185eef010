"""The images that sandboxes run in."""
