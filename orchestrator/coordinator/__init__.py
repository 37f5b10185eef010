"""The coordinator agent of `fanout run`: its tools, its jobs, the merge of their changes."""
