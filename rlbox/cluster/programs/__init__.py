"""What runs on a node itself: one program, sent over its connection, of the standard library of Python 3.6 alone."""
