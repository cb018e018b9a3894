"""A run on a terminal, as HTML, and two compared."""
