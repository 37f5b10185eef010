"""The coordinator agent of `fanout run`: its tools, its jobs, and the merge of their changes."""
