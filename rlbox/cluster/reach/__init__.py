"""How nodes are reached: one connection each, a program there, all at once, one call at a time."""
