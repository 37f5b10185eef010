"""What `fanout doctor` checks and what `fanout config --limits` lists."""
