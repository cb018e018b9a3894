"""Other tools' forms of a target: compose, Apptainer, the on-start script of vast.ai."""
