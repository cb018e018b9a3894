"""What reads training data."""
