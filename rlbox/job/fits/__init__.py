"""What a job says of the machine that it needs, in formulas of its parameters."""
