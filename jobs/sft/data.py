"""Training data: made once from the validated rows, then checked before any GPU is busy.

`sft_train.parquet` and `sft_val.parquet` hold one conversation a row, in the column `messages`; `split_mapping.json`
says which row of `sft_validated.jsonl` went where. What is there already is only checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from sft import plan
from sft.files import MAPPING, TRAIN, VAL, Messages, write_parquet

_ASKED, _TOLD = (
    ("prompt", "instruction", "question", "query"),
    ("response", "output", "answer", "completion", "solution"),
)


class DataError(Exception):
    """The data cannot be trained on; the text says which file and row."""


def conversation(row: dict[str, Any]) -> Messages:
    """Return the conversation of a raw row: its `messages`, or a question and an answer by their usual names."""
    if "messages" in row:
        return [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in row["messages"]]
    asked = next((row[key] for key in _ASKED if row.get(key)), None)
    told = next((row[key] for key in _TOLD if row.get(key)), None)
    if asked is None or told is None:
        raise DataError(f"a row with the keys {', '.join(row)} has no question and answer")
    return [{"role": "user", "content": str(asked)}, {"role": "assistant", "content": str(told)}]


def problem_of(messages: Any) -> str:
    """Return what is wrong with one conversation, or nothing."""
    if messages is None or not len(messages):
        return "is empty"
    roles = [str(turn["role"]) for turn in messages]
    if roles[-1] != "assistant" or "user" not in roles:
        return f"has the roles {', '.join(roles)}: it must ask and end with the assistant's answer"
    if not str(messages[-1]["content"]).strip():
        return "has an empty answer"
    return ""


def prepare(raw: Path, folder: Path, val_rows: int, seed: int) -> None:
    """Split the validated rows and write the three files, each by rename."""
    rows = [json.loads(line) for line in raw.read_text().splitlines() if line.strip()]
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    parts = {"val": sorted(order[:val_rows]), "train": sorted(order[val_rows:])}
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in (("train", TRAIN), ("val", VAL)):
        write_parquet(folder / file, [conversation(rows[number]) for number in parts[name]])
    (folder / MAPPING).write_text(json.dumps({"source": raw.name, "seed": seed, **parts}) + "\n")


def read_parquet(path: Path) -> list[Any]:
    """Return the conversations of a file; `DataError` when it is missing, cut, or has no column `messages`."""
    from pyarrow import parquet
    from pyarrow.lib import ArrowInvalid

    try:
        table = parquet.read_table(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: upload it, or the raw rows it is made from") from error
    except (ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is no whole parquet file: {error}") from error
    if "messages" not in table.column_names:
        raise DataError(f"{path} has the columns {', '.join(table.column_names)}, not messages")
    rows: list[Any] = table.column("messages").to_pylist()
    return rows


def check(folder: Path, wanted: dict[str, int], tokenizer: str, longest: int) -> list[str]:
    """Return facts about the data, a line each.

    Parameters
    ----------
    wanted
        File name to how many rows it must have.
    tokenizer
        Model whose tokenizer counts the tokens; empty: lengths are not looked at.
    """
    parts = {file: read_parquet(folder / file) for file in wanted}
    for file, rows in parts.items():
        if wanted[file] and len(rows) != wanted[file]:
            raise DataError(f"{folder / file} has {len(rows)} rows, not {wanted[file]}")
        if broken := [(number, problem) for number, row in enumerate(rows) if (problem := problem_of(row))]:
            raise DataError(f"{folder / file}: row {broken[0][0]} {broken[0][1]} ({len(broken)} such rows)")
    keys = {file: [_key(row) for row in rows] for file, rows in parts.items()}
    if both := set(keys[TRAIN]) & set(keys[VAL]):
        raise DataError(f"{len(both)} conversations are in {TRAIN} and in {VAL}: val/loss would be too good")
    facts = [
        f"{file}: {len(rows)} conversations, {len(rows) - len(set(keys[file]))} twice" for file, rows in parts.items()
    ]
    return facts + _lengths(parts, tokenizer, longest) + _mapping(folder, parts)


def _mapping(folder: Path, parts: dict[str, list[Any]]) -> list[str]:
    path = folder / MAPPING
    if not path.is_file():
        return [f"{MAPPING}: not there; which raw row went where is not known"]
    told = json.loads(path.read_text())
    for name, file in (("train", TRAIN), ("val", VAL)):
        if isinstance(told.get(name), list) and len(told[name]) != len(parts[file]):
            raise DataError(f"{path} names {len(told[name])} rows for {name}, {file} has {len(parts[file])}")
    return [f"{MAPPING}: fits"]


def _lengths(parts: dict[str, list[Any]], tokenizer: str, longest: int) -> list[str]:
    if not tokenizer:
        return []
    from transformers import AutoTokenizer

    model = AutoTokenizer.from_pretrained(tokenizer)
    facts = []
    for file, rows in parts.items():
        texts = [model.apply_chat_template(row, tokenize=False) for row in rows]
        counts = sorted(len(ids) for ids in model(texts, add_special_tokens=False)["input_ids"])
        over = sum(count > longest for count in counts)
        facts.append(
            f"{file}: {counts[len(counts) // 2]} tokens in the middle, {counts[-1]} at most, {over} over {longest}"
        )
    return facts


def _key(row: Any) -> str:
    text = json.dumps([[str(turn["role"]), str(turn["content"])] for turn in row], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    """Make the data where they are missing, check them, and say what they are."""
    parser = argparse.ArgumentParser(prog="sft.data", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--raw", type=Path, required=True, help="sft_validated.jsonl")
    parser.add_argument("--problems", type=Path, required=True, help="folder of the raw problem sets")
    parser.add_argument("--prepare", choices=("check", "tiny"), default="check", help="tiny: make all of it first")
    parser.add_argument("--train-rows", type=int, required=True, help="0: any number")
    parser.add_argument("--val-rows", type=int, required=True, help="0: any number")
    parser.add_argument("--model", default="", help="its tokenizer counts the tokens")
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, required=True, help="where the training will write")
    plan.add_options(parser)
    args = parser.parse_args()
    if found := plan.problem(args, args.checkpoints):
        sys.exit(f"sft.data: error: {found}")
    try:
        if args.check_and_prepare_run_start == "tiny":
            from sft.tiny import write_all

            write_all(Path(args.model), args.folder, args.problems)
        elif not (args.folder / TRAIN).exists() and args.raw.is_file():
            prepare(args.raw, args.folder, args.val_rows, args.seed)
            print(f"[data] made {TRAIN} and {VAL} from {args.raw}", flush=True)
        facts = check(args.folder, {TRAIN: args.train_rows, VAL: args.val_rows}, args.model, args.max_length)
    except DataError as error:
        sys.exit(f"sft.data: error: {error}")
    for fact in facts:
        print(f"[data] {fact}", flush=True)
    print("[data] passed", flush=True)


if __name__ == "__main__":
    main()
