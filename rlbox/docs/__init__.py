"""The pages that are made from catalogue, demands and seeds; not in the wheel."""
