"""Which package a message is from, in which versions, and which function says it."""
