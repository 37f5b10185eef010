"""A person's Git repositories, of which Git itself sees data only."""
