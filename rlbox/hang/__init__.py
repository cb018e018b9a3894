"""Does it work, is it slow, does it hang; what each process waits for."""
