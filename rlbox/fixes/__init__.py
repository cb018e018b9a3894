"""The fix catalogue: which fixes a target gets, and what they bake into its image."""
