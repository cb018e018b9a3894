"""What rlbox says, in the language of who reads it.

The code, records and `--json` speak English. Where text leaves for a person, it is told by a catalogue that knows every
message of the code by its English template (`scripts/messages.py` keeps it complete): so a record that was written in
one language is read in another, and what goes into an image stays what it was.
"""
