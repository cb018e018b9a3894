"""Gather, explain and bundle what a failed run left."""
