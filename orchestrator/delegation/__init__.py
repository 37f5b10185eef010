"""What a call of `task` means, for a coordinator and for an agent on a worker."""
