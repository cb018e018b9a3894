"""The fix catalogue: which fixes a target gets, what they bake into its image, and how they are told."""
