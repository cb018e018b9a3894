"""The files of the training data: their names, and how one is written."""

from __future__ import annotations

from pathlib import Path

TRAIN, VAL, MAPPING = "sft_train.parquet", "sft_val.parquet", "split_mapping.json"
Messages = list[dict[str, str]]


def write_parquet(path: Path, conversations: list[Messages]) -> None:
    """Write one conversation a row, in the column `messages`."""
    import pyarrow
    from pyarrow import parquet

    part = path.with_name(f".{path.name}.part")
    parquet.write_table(pyarrow.table({"messages": conversations}), part)
    part.rename(path)
