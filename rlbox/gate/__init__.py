"""The rules that a stage must fulfil, and the facts they are held against."""
