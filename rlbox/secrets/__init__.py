"""Find a secret, hand it over, keep it out of all that is written."""
