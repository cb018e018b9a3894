"""From lines to events: whose line it is, when it was written, what it says, and the traceback that it belongs to."""
