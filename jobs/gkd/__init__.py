"""Programs of the job `gkd`: checks, the teacher, the recipe's trainer with the lines that tell where it is."""
