"""What all commands share: output, sessions, exit codes, the live view."""
