"""A script that a node's own python3 runs over ssh (3.6 or newer, standard library); it is sent with each call."""
