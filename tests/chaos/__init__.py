"""Jobs under every fault that fanout promises to survive, and the proof that it did."""
