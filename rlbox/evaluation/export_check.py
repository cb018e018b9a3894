"""Check an export: the trainer's shards are merged by the framework that wrote them, then compared tensor by tensor.

Merger and comparison run in an interpreter that has torch; tokenizer and configuration are compared here.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.errors import RlboxError
from rlbox.evaluation.export import EXPORT_SUBDIRECTORIES
from rlbox.evaluation.tokenizer_diff import TOKENIZER_FILES, Tokenizer, compare_tokenizers, parse_tokenizer
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, run_command, start_command
from rlbox.values import Command

_UNTOLD = (
    *("transformers_version", "_name_or_path", "architectures", "use_cache", "dtype", "torch_dtype", "auto_map"),
    *("_attn_implementation", "attn_implementation", "pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Keys of a configuration that savers and trainers write as they please; none decides what a model computes."""


@dataclass(frozen=True, kw_only=True)
class ExportFault:
    """Something of an export that is not the checkpoint's: `of` is a tensor, a file or a part, `says` a sentence."""

    of: str
    says: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """How a check went: the form of the trainer's checkpoint, tensors that are equal, their casts, what is wrong."""

    form: str
    ranks: int
    tensors: int
    equal: int
    casts: Sequence[Mapping[str, Any]]
    faults: Sequence[ExportFault]
    words: int
    logits: Mapping[str, Any] | None = None

    @property
    def good(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "good": self.good,
            "source": {"form": self.form, "ranks": self.ranks},
            "tensors": self.tensors,
            "equal": self.equal,
            "casts": [dict(cast) for cast in self.casts],
            "tokenizer": {"words": self.words},
            "logits": dict(self.logits) if self.logits else None,
            "faults": [{"of": one.of, "says": one.says, **one.facts} for one in self.faults],
        }


def describe_tensor_fault(row: Mapping[str, Any]) -> ExportFault:
    facts = {key: value for key, value in row.items() if key != "step"}
    says = _SAYS[str(row["kind"])](row)
    return ExportFault(of=str(row.get("tensor") or row.get("file")), says=says, facts=facts)


def compare_configs(export: Mapping[str, Any], own: Mapping[str, Any], path: str = "") -> Iterator[ExportFault]:
    """Yield the keys of both configurations that differ and that decide what the model computes."""
    for key in sorted({*export} & {*own} - {*_UNTOLD}):
        one, other, name = export[key], own[key], f"{path}{key}"
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from compare_configs(one, other, f"{name}.")
        elif one != other:
            yield ExportFault(of=f"config.json: {name}", says=f"{one!r}, not {other!r}", facts={"kind": "config"})


def format_report(report: ExportReport, max_faults: int) -> Iterator[str]:
    """Yield how a check went; `max_faults` faults at most."""
    yield f"compared with {report.form} of {report.ranks} ranks"
    yield f"tensors: {report.equal} of {report.tensors} are the trainer's, bit by bit"
    for cast in report.casts:
        own, into = cast["own"], cast["export"]
        yield f"  {cast['tensors']} kept in {own}" if own == into else f"  {cast['tensors']} cast from {own} to {into}"
    if not any(fault.facts.get("kind") == "words" for fault in report.faults):
        yield f"tokenizer: the same {report.words} tokens and chat template"
    if report.logits:
        yield _logits_line(report.logits)
    for fault in report.faults[:max_faults]:
        yield f"[FAIL] {fault.of}: {fault.says}"
    if len(report.faults) > max_faults:
        yield f"and {len(report.faults) - max_faults} more"


def _logits_line(logits: Mapping[str, Any]) -> str:
    told = "the same" if logits["same"] else f"up to {logits['largest']:.3g} apart"
    return f"logits of {logits['tokens']} tokens in transformers {logits['transformers']}: {told}"


def _differs(row: Mapping[str, Any]) -> str:
    told = f"{row['wrong']} of {row['numbers']} numbers differ"
    if "largest" in row:
        told = f"{told}, by {row['largest']:.3g} at most"
    if "holds" in row:
        return f"{told}; it is the trainer's {row['holds']}"
    if "rounded" in row:
        return f"{told}; it was rounded to {row['rounded']} on its way"
    return f"{told}; it was cut, not rounded" if row.get("cut") else told


def _dtype(row: Mapping[str, Any]) -> str:
    if row["named"]:
        return f"it is {row['got']}, neither the trainer's {row['own']} nor the {row['named']} that is named"
    return f"it is {row['got']}, the trainer's is {row['own']}, and no cast is named"


_SAYS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "differs": _differs,
    "dtype": _dtype,
    "shape": lambda row: f"its shape is {row['got']}, the trainer's {row['own']}",
    "missing": lambda row: "the export has no such tensor",
    "extra": lambda row: "the trainer has no such tensor",
    "unread": lambda row: str(row["why"]),
    "gone": lambda row: "the index names it, and it is not there",
    "misplaced": lambda row: f"it holds {row['tensor']}, for which the index names another file or none",
    "stale": lambda row: (
        "weights of another form beside the safetensors: which of both is loaded depends on who loads"
        if row["why"] == "beside"
        else "no index names it: it is of another export"
    ),
}
"""What is said of each kind of fault."""


PROGRAM = Path(__file__).resolve().parent / "programs/export_tensors.py"
_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_MERGE_S = 4 * 3600.0
_TOLD = 600


class ComparisonFailedError(Exception):
    """Nothing can be said of an export: no torch, no merger, or a checkpoint of a form that nothing here merges."""


class TorchMissingError(ComparisonFailedError):
    """The interpreter has no torch."""


@dataclass(frozen=True, kw_only=True)
class TrainerCheckpoint:
    """What a trainer's directory holds, and the arguments of Python that merge it into the directory `{out}`.

    Without a `merger` the files in `directory` hold complete tensors.
    """

    form: str
    ranks: int
    directory: Path
    merger: tuple[str, ...] = ()


def find_trainer_checkpoint(against: Path) -> TrainerCheckpoint:
    """Return what a trainer's directory, its `actor/`, or the directory that its `latest` names holds.

    Raises
    ------
    NotCompared
        The form is not known here, or ranks are missing.
    """
    for directory in _checkpoint_places(against):
        names = sorted(path.name for path in directory.iterdir())
        ranks = {int(match[2]): int(match[1]) for name in names if (match := _RANK.fullmatch(name))}
        if ranks:
            return _fsdp(directory, ranks)
        partitions = [name for name in names if name.endswith("_optim_states.pt")]
        if partitions:
            merge = ("-m", "deepspeed.utils.zero_to_fp32", str(directory.parent), "{out}", "--tag", directory.name)
            argv = (*merge, "--safe_serialization")
            return TrainerCheckpoint(form="DeepSpeed ZeRO", ranks=len(partitions), directory=directory, merger=argv)
        if any(name.endswith(".distcp") for name in names):
            raise ComparisonFailedError(
                _(
                    "{directory} is a distributed checkpoint (.distcp), as Megatron and slime write it; export "
                    "it with the framework's own converter, and compare with a second export of that"
                ).format(directory=directory)
            )
        for suffixes, form in (((".safetensors",), "safetensors"), ((".bin", ".pt"), "torch.save")):
            if any(name.endswith(suffixes) for name in names):
                return TrainerCheckpoint(form=form, ranks=1, directory=directory)
    raise ComparisonFailedError(
        _("{against} holds no weights that are known: verl's shards, DeepSpeed's, safetensors, .bin").format(
            against=against
        )
    )


def _checkpoint_places(against: Path) -> Iterator[Path]:
    yield from (against / name for name in ("", "actor") if (against / name).is_dir())
    latest = against / "latest"
    if latest.is_file() and "/" not in (tag := latest.read_text("utf-8").strip()) and (against / tag).is_dir():
        yield against / tag


def _fsdp(directory: Path, ranks: Mapping[int, int]) -> TrainerCheckpoint:
    worlds = sorted(set(ranks.values()))
    if len(worlds) > 1:
        raise ComparisonFailedError(
            _("{directory}: files of {worlds} ranks").format(
                directory=directory, worlds=" and of ".join(map(str, worlds))
            )
        )
    if missing := [rank for rank in range(worlds[0]) if rank not in ranks]:
        raise ComparisonFailedError(
            _("{directory}: ranks missing: {missing} (of {world})").format(
                directory=directory, missing=missing, world=worlds[0]
            )
        )
    merge = ("-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(directory))
    return TrainerCheckpoint(
        form="FSDP", ranks=worlds[0], directory=directory, merger=(*merge, "--target_dir", "{out}")
    )


@contextlib.contextmanager
def merge_shards(checkpoint: TrainerCheckpoint, python: str) -> Iterator[Path]:
    """Yield a directory with the trainer's complete tensors, merged in a temporary one (TMPDIR) where that is needed.

    The merger unpickles what the trainer wrote, which runs whatever code it names: as loading it to train on does.
    """
    if not checkpoint.merger:
        yield checkpoint.directory
        return
    with tempfile.TemporaryDirectory(prefix="rlbox-merged-") as out:
        arguments = tuple(argument.replace("{out}", out) for argument in checkpoint.merger)
        try:
            outcome = run_command(Command(argv=(python, *arguments), timeout_s=_MERGE_S))
        except RlboxError as error:
            raise ComparisonFailedError(error.what) from error
        if not outcome.ok:
            last = _last_line(outcome.stderr)
            if "No module named 'torch'" in last:
                raise TorchMissingError(last)
            raise ComparisonFailedError(
                _("{merger} failed with status {exit_code}: {last}").format(
                    merger=checkpoint.merger[1], exit_code=outcome.exit_code, last=last
                )
            )
        yield Path(out)


@dataclass(frozen=True, kw_only=True)
class ExportCheckOptions:
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


def find_trainer_model(export: Path, against: Path) -> Path | None:
    """Return the folder in Hugging Face's form that a trainer keeps beside its shards, if it is not the export."""
    for place in EXPORT_SUBDIRECTORIES:
        folder = against / place
        if (folder / "config.json").is_file() and not folder.samefile(export):
            return folder
    return None


def check_export(options: ExportCheckOptions, tell: Callable[[int, int], None]) -> ExportReport:
    """Return how an export stands to its checkpoint; `tell` hears how many tensors are done, and of how many.

    Raises
    ------
    NotCompared
        Nothing can be compared; the text says why.
    ValueError
        A configuration or a tokenizer cannot be read.
    """
    checkpoint = find_trainer_checkpoint(options.against)
    config = _config(options.export)
    words, own = _words(options.export), _words(options.model)
    if not own.there:
        raise ValueError(_("{model} has no tokenizer").format(model=options.model))
    faults = [ExportFault(of=part, says=says, facts={"kind": "words"}) for part, says in compare_tokenizers(words, own)]
    faults += compare_configs(config, _config(options.model))
    end: dict[str, Any] = {}
    logits: dict[str, Any] | None = None
    with merge_shards(checkpoint, options.python) as weights:
        for row in _rows(options, config, weights):
            match row["step"]:
                case "at":
                    tell(row["done"], row["of"])
                case "fault":
                    faults.append(describe_tensor_fault(row))
                case "logits":
                    logits = {key: value for key, value in row.items() if key != "step"}
                case "end":
                    end = row
    if logits and not logits["same"]:
        told = f"up to {logits['largest']:.3g} apart" if logits["largest"] >= 0 else "of another shape"
        faults.append(ExportFault(of="logits", says=told, facts={"kind": "logits"}))
    return ExportReport(
        form=checkpoint.form,
        ranks=checkpoint.ranks,
        tensors=end["tensors"],
        equal=end["equal"],
        casts=end["casts"],
        faults=faults,
        words=len({**words.vocabulary, **words.added}),
        logits=logits,
    )


def _rows(wish: ExportCheckOptions, config: dict[str, Any], weights: Path) -> Iterator[dict[str, Any]]:
    text = config.get("text_config") or {}
    named = wish.dtype or config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or ""
    asked = {
        "export": str(wish.export.absolute()),
        "against": str(weights.absolute()),
        "model": str(wish.model.absolute()),
        "dtype": str(named).removeprefix("torch."),
        "rename": [list(rule) for rule in wish.rename],
        "tied": bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        "logits": wish.logits,
    }
    command = Command(argv=(wish.python, "-W", "ignore", str(PROGRAM)), env={"PYTHONDONTWRITEBYTECODE": "1"})
    with tempfile.TemporaryFile() as errors:
        try:
            process = start_command(command, stdin=PIPE, stdout=PIPE, stderr=errors, die_with_parent=True)
        except OSError as error:
            raise ComparisonFailedError(f"{wish.python}: {error.strerror}") from error
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
    told = _last_line(said)
    if status == 3:
        raise TorchMissingError(told)
    raise ComparisonFailedError(
        told if status == 4 else _("the comparison ended with status {status}: {told}").format(status=status, told=told)
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][-_TOLD:]


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            _("{folder} cannot be read: {error}").format(folder=folder / "config.json", error=error)
        ) from error
    if not isinstance(found, dict):
        raise ValueError(_("{folder} is no table").format(folder=folder / "config.json"))
    return found


def _words(folder: Path) -> Tokenizer:
    try:
        return parse_tokenizer(
            {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            _("the tokenizer of {folder} cannot be read: {error}").format(folder=folder, error=error)
        ) from error
