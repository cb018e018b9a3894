"""Scores that mean the same tomorrow: what they were made with, how sure they are, and which checkpoint is best."""
