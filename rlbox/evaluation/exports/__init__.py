"""Whether an export is the checkpoint: its tensors bit by bit, its tokenizer, its configuration."""
