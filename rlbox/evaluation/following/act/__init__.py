"""What looks at folders that grow, and waits."""
