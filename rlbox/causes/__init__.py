"""The first fatal line, what is known of it, and the sentence that says why."""
