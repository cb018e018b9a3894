"""Plans: pure functions from spec and facts to files and commands. Nothing here acts."""
