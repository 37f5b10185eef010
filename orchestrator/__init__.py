"""The parent's side: decide, dispatch, wait, merge, serve."""
