"""A person's Git repositories, of which Git itself reads only data."""
