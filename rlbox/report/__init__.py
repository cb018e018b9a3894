"""Reports: what outcomes and log text mean, and how they are shown."""
