"""Judge and probe the machine or container that this runs in; the checks of fixes."""
