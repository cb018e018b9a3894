"""What is wrong with nodes: facts in, findings out, a function a question."""
