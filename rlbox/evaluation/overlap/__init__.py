"""Which problems of a suite stand in the data that a model was trained on."""
