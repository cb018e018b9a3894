"""What the planner asks of a machine, and how it says no."""
