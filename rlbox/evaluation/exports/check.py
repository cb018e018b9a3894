"""Check an export: files are read here, tensors are compared by an interpreter that has torch."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.evaluation.export import PLACES
from rlbox.evaluation.exports.faults import ExportFault, ExportReport, config_faults, tensor_fault
from rlbox.evaluation.exports.words import TOKENIZER_FILES, Words, read_words, word_faults
from rlbox.foreign import parse_json
from rlbox.system.command import PIPE, start_command
from rlbox.values import Command

PROGRAM = Path(__file__).resolve().parent / "programs/export_tensors.py"
_TOLD = 600


class NotCompared(Exception):
    """Nothing can be said of an export: no torch, or a checkpoint of a form that is not read."""


class NoTorch(NotCompared):
    """The interpreter has no torch."""


@dataclass(frozen=True, kw_only=True)
class ExportWish:
    """What is checked: `export` against the trainer's folder `against`; `model` is whose tokenizer it must have.

    `dtype` names the cast, empty: that of the export's configuration; `rename` are beginnings of the trainer's names
    and what they are called in the export.
    """

    export: Path
    against: Path
    model: Path
    python: str
    dtype: str = ""
    rename: Sequence[tuple[str, str]] = field(default=())
    logits: bool = False


def own_model(export: Path, against: Path) -> Path | None:
    """Return the folder in Hugging Face's form that a trainer keeps beside its shards, if it is not the export."""
    for place in PLACES:
        folder = against / place
        if (folder / "config.json").is_file() and not folder.samefile(export):
            return folder
    return None


def check_export(wish: ExportWish, tell: Callable[[int, int], None]) -> ExportReport:
    """Return how an export stands to its checkpoint; `tell` hears how many tensors are done, and of how many.

    Raises
    ------
    NotCompared
        Nothing can be compared; the text says why.
    ValueError
        A configuration or a tokenizer cannot be read.
    """
    config = _config(wish.export)
    words, own = _words(wish.export), _words(wish.model)
    if not own.there:
        raise ValueError(f"{wish.model} has no tokenizer")
    faults = [ExportFault(of=part, says=says, facts={"kind": "words"}) for part, says in word_faults(words, own)]
    faults += config_faults(config, _config(wish.model))
    source: dict[str, Any] = {}
    end: dict[str, Any] = {}
    logits: dict[str, Any] | None = None
    for row in _rows(wish, config):
        match row["step"]:
            case "source":
                source = row
            case "at":
                tell(row["done"], row["of"])
            case "fault":
                faults.append(tensor_fault(row))
            case "logits":
                logits = {key: value for key, value in row.items() if key != "step"}
            case "end":
                end = row
    if logits and not logits["same"]:
        told = f"up to {logits['largest']:.3g} apart" if logits["largest"] >= 0 else "of another shape"
        faults.append(ExportFault(of="logits", says=told, facts={"kind": "logits"}))
    return ExportReport(
        form=source["form"],
        ranks=source["ranks"],
        tensors=end["tensors"],
        equal=end["equal"],
        casts=end["casts"],
        faults=faults,
        words=len({**words.vocabulary, **words.added}),
        logits=logits,
    )


def _rows(wish: ExportWish, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the comparison says, line by line."""
    text = config.get("text_config") or {}
    named = wish.dtype or config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or ""
    asked = {
        "export": str(wish.export.absolute()),
        "against": str(wish.against.absolute()),
        "model": str(wish.model.absolute()),
        "dtype": str(named).removeprefix("torch."),
        "rename": [list(rule) for rule in wish.rename],
        "tied": bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        "logits": wish.logits,
    }
    command = Command(argv=(wish.python, "-W", "ignore", str(PROGRAM)), env={"PYTHONDONTWRITEBYTECODE": "1"})
    with tempfile.TemporaryFile() as errors:
        try:
            process = start_command(command, stdin=PIPE, stdout=PIPE, stderr=errors, dies_with_us=True)
        except OSError as error:
            raise NotCompared(f"{wish.python}: {error.strerror}") from error
        with process:
            assert process.stdin  # noqa: S101 - a pipe, as was asked for
            assert process.stdout  # noqa: S101
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its exit status says why
                process.stdin.write(json.dumps(asked).encode())
                process.stdin.close()
            yield from (dict(parse_json(line)) for line in process.stdout)
        if process.returncode:
            errors.seek(0)
            _refuse(process.returncode, errors.read().decode("utf-8", "replace"))


def _refuse(status: int, said: str) -> None:
    told = (said.strip().splitlines() or [""])[-1][-_TOLD:]
    if status == 3:
        raise NoTorch(told)
    raise NotCompared(told if status == 4 else f"the comparison ended with status {status}: {told}")


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{folder / 'config.json'} is no table")
    return found


def _words(folder: Path) -> Words:
    try:
        return read_words({name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the tokenizer of {folder} cannot be read: {error}") from error
