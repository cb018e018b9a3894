"""Several machines as one Ray cluster: what is asked of them, how it is started, closed, watched and taken away."""
