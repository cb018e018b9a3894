"""What doctor probes: a module a family of checks, and what several of them share."""
