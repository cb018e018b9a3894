"""The fake data set: pictures of squares to count (or sums, for a model without eyes), and two rows of it.

Files lie in one folder: train.parquet, val.parquet, train_tiny.parquet. What is there already is only checked.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

TRAIN, VAL, TINY = "train.parquet", "val.parquet", "train_tiny.parquet"
TINY_ROWS = 2
COLUMNS = ("data_source", "prompt", "reward_model", "extra_info")


class DataError(Exception):
    """The data cannot be trained on; the text says which file and why."""


def picture(count: int, seed: int, side: int = 112) -> bytes:
    """Return a PNG, black on white, with `count` squares (up to 16) on a grid of four by four."""
    rows = [bytearray(b"\xff" * side) for _ in range(side)]
    step = side // 4
    for cell in random.Random(seed).sample(range(16), count):
        top, left = cell // 4 * step + step // 4, cell % 4 * step + step // 4
        for y in range(top, top + step // 2):
            rows[y][left : left + step // 2] = bytes(step // 2)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def row(number: int, kind: str, split: str) -> dict[str, Any]:
    """Return one row in the form that verl reads."""
    chance = random.Random(f"{split}-{number}")
    count, more = chance.randint(1, 16), chance.randint(0, 9)
    ask = "<image>How many squares are there?" if kind == "images" else f"What is {count} plus {more}?"
    truth = count if kind == "images" else count + more
    found: dict[str, Any] = {
        "data_source": "rlbox/fake",
        "prompt": [{"role": "user", "content": f"{ask} Answer with the number."}],
        "ability": "count",
        "reward_model": {"style": "rule", "ground_truth": str(truth)},
        "extra_info": {"index": number, "split": split},
    }
    return found | ({"images": [{"bytes": picture(count, number)}]} if kind == "images" else {})


def make(folder: Path, kind: str, train_rows: int, val_rows: int) -> None:
    """Write the three files, each by rename; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, split, count in ((TRAIN, "train", train_rows), (VAL, "val", val_rows)):
        if not (folder / name).exists():
            _write(folder / name, _table([row(number, kind, split) for number in range(count)], kind))
    _write(folder / TINY, read(folder / TRAIN).slice(0, TINY_ROWS))


def _table(rows: list[dict[str, Any]], kind: str) -> Any:
    """Return rows as an Arrow table whose schema says which column holds pictures.

    Source: verl 0.7.0 utils/dataset/rl_dataset.py `_build_messages`: a picture that `datasets` does not decode stays a
    dict of bytes, which qwen_vl_utils cannot open.
    """
    import datasets

    found = datasets.Dataset.from_list(rows)
    if kind == "images":
        found = found.cast_column("images", [datasets.Image()])
    return found.data.table


def _write(path: Path, table: Any) -> None:
    from pyarrow import parquet

    part = path.with_name(f".{path.name}.part")
    parquet.write_table(table, part)
    part.rename(path)


def read(path: Path) -> Any:
    """Return a file as an Arrow table; `DataError` when it is missing, cut, or lacks a column that verl reads."""
    from pyarrow import parquet
    from pyarrow.lib import ArrowInvalid

    try:
        table = parquet.read_table(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: write the cluster's own path, --set data_dir=FOLDER") from error
    except (ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is no whole parquet file: {error}") from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise DataError(f"{path} has no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    return table


def main() -> None:
    """Make the data where they are missing, check them, and say what they are."""
    parser = argparse.ArgumentParser(prog="grpo.data", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="DATA_OUTPUT_DIR of the data script")
    parser.add_argument("--kind", choices=("images", "text"), required=True)
    parser.add_argument("--train-rows", type=int, required=True)
    parser.add_argument("--val-rows", type=int, required=True)
    parser.add_argument("--tiny-model", default="", help="folder that gets a random text model; empty: none")
    args = parser.parse_args()
    try:
        make(args.folder, args.kind, args.train_rows, args.val_rows)
        for name in (TRAIN, VAL, TINY):
            table = read(args.folder / name)
            print(f"[data] {args.folder / name}: {table.num_rows} rows, {', '.join(table.column_names)}", flush=True)
    except DataError as error:
        sys.exit(f"grpo.data: error: {error}")
    if args.tiny_model:
        from grpo import tiny

        tiny.write_model(Path(args.tiny_model))
    print("[data] passed", flush=True)


if __name__ == "__main__":
    main()
