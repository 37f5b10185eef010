"""What all commands share: output, options, exit codes, the live view."""
