"""`rlbox data`: check training data before a GPU is busy, or make a tiny set of them."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.options import Amount, dry_run, shared

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("action", type=click.Choice(["check", "tiny"]))
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--val", metavar="FILE", type=_FILE, help="check: the validation rows; none may be in FILE.")
@click.option("--split", metavar="FILE", type=_FILE, help="check: JSON that says which row went where.")
@click.option("--column", metavar="NAME", default="", help="check: where the conversations are [messages, prompt].")
@click.option("--tokenizer", metavar="DIR", default="", help="check: the model whose tokens are counted.")
@click.option("--longest", metavar="TOKENS", default=4096, show_default=True, help="check: length that is trained on.")
@click.option("--val-rows", metavar="N", type=click.IntRange(1), help="check: rows that must be there.")
@click.option("--rows", metavar="N", type=click.IntRange(1), help="check: the same of FILE; tiny: rows to write [2].")
@click.option("--to", metavar="FILE", type=_FILE, help="tiny: where to [$DATA_OUTPUT_DIR/…_tiny.parquet].")
@click.option("--python", metavar="FILE", default="", help="Interpreter with pyarrow, and transformers for tokens.")
@click.option(
    "--timeout",
    type=Amount(),
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="Time limit for the whole check.",
)
@dry_run
@shared
def verb(
    app: App,
    action: str,
    file: Path,
    val: Path | None,
    split: Path | None,
    column: str,
    tokenizer: str,
    longest: int,
    val_rows: int | None,
    rows: int | None,
    to: Path | None,
    python: str,
    timeout: float,
) -> int:
    """Check rows, columns, conversations, lengths and overlap of FILE, or write its first rows to a file of their own.

    The stack's own interpreter reads the data: in an image, on an applied machine, or one named with --python.

    \b
    Examples:
      rlbox data check data/sft_train.parquet --val data/sft_val.parquet --rows 2020 --val-rows 200
      rlbox data tiny data/train.parquet --to data/train_tiny.parquet
    """
    from rlbox.evaluation.data_check import DataWish
    from rlbox.evaluation.data_here import check_data, make_tiny

    if action == "tiny":
        return make_tiny(app, file, to, rows or 2, python, timeout)
    wanted = {name: number for name, number in (("train", rows), ("val", val_rows)) if number}
    files = {"train": file, **({"val": val} if val else {})}
    wish = DataWish(rows=wanted, longest=longest)
    return check_data(app, files, split, {"column": column, "tokenizer": tokenizer}, wish, python, timeout)
