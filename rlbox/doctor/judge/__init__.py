"""What doctor judges by facts: a module a family of checks, each check one question."""
