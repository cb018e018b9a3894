"""Compare an export with the trainer's checkpoint (`rlbox eval check`).

The trainer's shards are merged by the framework that wrote them; tensors and tokenizers are compared by
`programs/compare_export.py`. Both run in an interpreter of the stack.
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
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _, translate
from rlbox.system.command import PIPE, run_command, start_command
from rlbox.values import Command

_PROGRAM = Path(__file__).resolve().parent / "programs/compare_export.py"
_IGNORED_KEYS = (
    *("transformers_version", "_name_or_path", "architectures", "use_cache", "dtype", "torch_dtype", "auto_map"),
    *("_attn_implementation", "attn_implementation", "pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Keys of a configuration that savers and trainers write as they please; none decides what a model computes."""
_FSDP_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_MERGE_TIMEOUT_S = 4 * 3600.0
_MAX_MESSAGE = 600
_PACKAGE_MISSING_STATUS, _NOT_COMPARABLE_STATUS = 3, 4


class ComparisonFailedError(Exception):
    """Nothing can be said of an export: no torch, no merger, or a checkpoint of a form that nothing here merges."""


class PackageMissingError(ComparisonFailedError):
    """The interpreter lacks torch, safetensors or transformers."""


@dataclass(frozen=True, kw_only=True)
class ExportFault:
    """A tensor, file or part of an export that is not the checkpoint's, with a sentence that says how."""

    subject: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportComparisonReport:
    """`format` is the trainer's (`FSDP`, `DeepSpeed ZeRO`); `casts` counts tensors by the trainer's type and theirs."""

    format: str
    ranks: int
    tensors: int
    equal: int
    casts: Sequence[Mapping[str, Any]]
    faults: Sequence[ExportFault]
    tokenizer_vocabulary_size: int

    @property
    def is_good(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "good": self.is_good,
            "source": {"form": self.format, "ranks": self.ranks},
            "tensors": self.tensors,
            "equal": self.equal,
            "casts": [dict(cast) for cast in self.casts],
            "tokenizer": {"words": self.tokenizer_vocabulary_size},
            "faults": [{"of": fault.subject, "says": fault.message, **fault.details} for fault in self.faults],
        }


@dataclass(frozen=True, kw_only=True)
class _TrainerCheckpoint:
    """The shards in `directory`, and the arguments of Python that merge them into the directory `{out}`.

    Without a `merger` the files hold complete tensors.
    """

    format: str
    ranks: int
    directory: Path
    merger: tuple[str, ...] = ()


def _find_trainer_checkpoint(path: Path) -> _TrainerCheckpoint:
    """Return the checkpoint in a directory, its `actor/`, or the directory that its `latest` names.

    Raises
    ------
    ComparisonFailedError
        The form is not known here, or ranks are missing.
    """
    directories = [path / name for name in ("", "actor") if (path / name).is_dir()]
    latest = path / "latest"
    if latest.is_file() and "/" not in (tag := latest.read_text("utf-8").strip()) and (path / tag).is_dir():
        directories.append(path / tag)
    for directory in directories:
        names = sorted(entry.name for entry in directory.iterdir())
        shards = [(int(match[1]), int(match[2])) for name in names if (match := _FSDP_RANK.fullmatch(name))]
        if shards:  # world size and rank of each
            world = max(shards)[0]
            if any(size != world for size, __ in shards):
                raise ComparisonFailedError(
                    _("{directory}: files of more than one number of ranks").format(directory=directory)
                )
            if missing := sorted(set(range(world)) - {rank for __, rank in shards}):
                raise ComparisonFailedError(
                    _("{directory}: ranks missing: {missing} (of {world})").format(
                        directory=directory, missing=missing, world=world
                    )
                )
            merge = ("-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(directory))
            return _TrainerCheckpoint(
                format="FSDP", ranks=world, directory=directory, merger=(*merge, "--target_dir", "{out}")
            )
        if partitions := [name for name in names if name.endswith("_optim_states.pt")]:
            convert = ("-m", "deepspeed.utils.zero_to_fp32", str(directory.parent), "{out}", "--tag", directory.name)
            return _TrainerCheckpoint(
                format="DeepSpeed ZeRO",
                ranks=len(partitions),
                directory=directory,
                merger=(*convert, "--safe_serialization"),
            )
        if any(name.endswith(".distcp") for name in names):
            raise ComparisonFailedError(
                _(
                    "{directory} is a distributed checkpoint (.distcp), as Megatron and slime write it; export "
                    "it with the framework's own converter, and compare with a second export of that"
                ).format(directory=directory)
            )
        for suffixes, file_format in (((".safetensors",), "safetensors"), ((".bin", ".pt"), "torch.save")):
            if any(name.endswith(suffixes) for name in names):
                return _TrainerCheckpoint(format=file_format, ranks=1, directory=directory)
    raise ComparisonFailedError(
        _("{against} holds no weights that are known: verl's shards, DeepSpeed's, safetensors, .bin").format(
            against=path
        )
    )


def find_hf_model_in_checkpoint(excluded_export: Path, trainer_checkpoint: Path) -> Path | None:
    """Return the Hugging Face directory that a trainer keeps beside its shards, if it is not the export."""
    for below in EXPORT_SUBDIRECTORIES:
        directory = trainer_checkpoint / below
        if (directory / "config.json").is_file() and not directory.samefile(excluded_export):
            return directory
    return None


@contextlib.contextmanager
def _merge_shards(checkpoint: _TrainerCheckpoint, python: str) -> Iterator[Path]:
    """Yield a directory with the trainer's complete tensors, merged in a temporary one (TMPDIR) where that is needed.

    The merger unpickles what the trainer wrote, which runs whatever code it names: as loading it to train on does.
    """
    if not checkpoint.merger:
        yield checkpoint.directory
        return
    with tempfile.TemporaryDirectory(prefix="rlbox-merged-") as out:
        arguments = (argument.replace("{out}", out) for argument in checkpoint.merger)
        try:
            result = run_command(Command(argv=(python, *arguments), timeout_s=_MERGE_TIMEOUT_S))
        except RlboxError as error:
            raise ComparisonFailedError(error.what) from error
        if not result.ok:
            last = _last_line(result.stderr)
            if "No module named 'torch'" in last:
                raise PackageMissingError(last)
            raise ComparisonFailedError(
                _("{merger} failed with status {exit_code}: {last}").format(
                    merger=checkpoint.merger[1], exit_code=result.exit_code, last=last
                )
            )
        yield Path(out)


def merge_shards_and_check_export(
    export: Path,
    trainer_checkpoint: Path,
    config_and_tokenizer_model: Path,
    python: str,
    on_progress: Callable[[int, int], None],
) -> ExportComparisonReport:
    """Compare an export with its checkpoint, and with the model whose tokenizer and configuration are due.

    `python` has torch, transformers and the merger; `on_progress` gets the tensors that are done, and all of them.

    Raises
    ------
    ComparisonFailedError
        Nothing can be compared.
    ValueError
        A configuration cannot be read.
    """
    checkpoint = _find_trainer_checkpoint(trainer_checkpoint)
    config = _read_config(export)
    faults = list(_compare_configs(config, _read_config(config_and_tokenizer_model)))
    text_config = config.get("text_config") or {}
    dtype = config.get("dtype") or config.get("torch_dtype") or text_config.get("dtype") or ""
    request = {
        "export": str(export.absolute()),
        "model": str(config_and_tokenizer_model.absolute()),
        "dtype": str(dtype).removeprefix("torch."),
        "tied": bool(config.get("tie_word_embeddings", text_config.get("tie_word_embeddings", False))),
    }
    tokens, end = 0, dict[str, Any]()
    with _merge_shards(checkpoint, python) as merged:
        for step in _run_comparison(python, request | {"trainer": str(merged.absolute())}):
            match step.pop("step"):
                case "progress":
                    on_progress(step["done"], step["total"])
                case "fault":
                    faults.append(ExportFault(subject=step.pop("of"), message=step.pop("says"), details=step))
                case "tokenizer":
                    tokens = step["tokens"]
                case "end":
                    end = step
    return ExportComparisonReport(
        format=checkpoint.format,
        ranks=checkpoint.ranks,
        faults=faults,
        tokenizer_vocabulary_size=tokens,
        tensors=end["tensors"],
        equal=end["equal"],
        casts=end["casts"],
    )


def _run_comparison(python: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    command = Command(argv=(python, "-W", "ignore", str(_PROGRAM)), env={"PYTHONDONTWRITEBYTECODE": "1"})
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(json.dumps(request).encode())
        stdin.seek(0)
        try:
            process = start_command(command, stdin=stdin, stdout=PIPE, stderr=stderr, die_with_parent=True)
        except OSError as error:
            raise ComparisonFailedError(f"{python}: {error.strerror}") from error
        with process:
            yield from (dict(parse_untrusted_json(line)) for line in process.stdout or ())
        if status := process.returncode:
            stderr.seek(0)
            last = _last_line(stderr.read().decode("utf-8", "replace"))
            if status == _PACKAGE_MISSING_STATUS:
                raise PackageMissingError(last)
            if status == _NOT_COMPARABLE_STATUS:
                raise ComparisonFailedError(last)
            raise ComparisonFailedError(
                _("the comparison ended with status {status}: {told}").format(status=status, told=last)
            )


def _compare_configs(export: Mapping[str, Any], model: Mapping[str, Any], prefix: str = "") -> Iterator[ExportFault]:
    """Yield the keys of both configurations that differ and that decide what the model computes."""
    for key in sorted({*export} & {*model} - {*_IGNORED_KEYS}):
        got, due, name = export[key], model[key], f"{prefix}{key}"
        if isinstance(got, Mapping) and isinstance(due, Mapping):
            yield from _compare_configs(got, due, f"{name}.")
        elif got != due:
            yield ExportFault(
                subject=f"config.json: {name}",
                message=_("{got!r}, not {due!r}").format(got=got, due=due),
                details={"kind": "config"},
            )


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = parse_untrusted_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(_("{folder} cannot be read: {error}").format(folder=path, error=error)) from error
    if not isinstance(config, dict):
        raise ValueError(_("{folder} is not a table").format(folder=path))
    return config


def format_report(report: ExportComparisonReport, max_faults: int) -> Iterator[str]:
    yield translate(_("compared with {format} of {ranks} ranks").format(format=report.format, ranks=report.ranks))
    text = _("tensors: {equal} of {tensors} are the trainer's, bit by bit")
    yield translate(text.format(equal=report.equal, tensors=report.tensors))
    for cast in report.casts:
        own, got = cast["own"], cast["export"]
        text = _("  {tensors} kept in {own}") if own == got else _("  {tensors} cast from {own} to {got}")
        yield translate(text.format(tensors=cast["tensors"], own=own, got=got))
    if not any(fault.details.get("kind") == "words" for fault in report.faults):
        text = _("tokenizer: the same {count} tokens and chat template")
        yield translate(text.format(count=report.tokenizer_vocabulary_size))
    for fault in report.faults[:max_faults]:
        yield f"[FAIL] {fault.subject}: {translate(fault.message)}"
    if len(report.faults) > max_faults:
        yield translate(_("and {count} more").format(count=len(report.faults) - max_faults))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][-_MAX_MESSAGE:]
