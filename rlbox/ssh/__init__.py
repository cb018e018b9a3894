"""OpenSSH: one shared connection to a machine, forwarded sockets, and files in both directions."""
