"""Git on a person's machine: how it is started, and the patches that it makes."""
