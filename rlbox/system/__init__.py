"""Files whole or not there, locks, tails, compression."""
