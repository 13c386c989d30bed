"""One file for each solvable network."""
