"""Acts: the only layer that touches processes, the engine, the network or a machine. No policy lives here."""
