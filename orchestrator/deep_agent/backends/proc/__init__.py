"""What `/proc` says about the processes of this machine."""
