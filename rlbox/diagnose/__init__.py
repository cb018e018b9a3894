"""What broke first in logs, why, on which rank, and what follows from it."""
