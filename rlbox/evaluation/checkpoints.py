"""Checkpoints of trainers on a disk: which are complete, from which a run resumes, which can be removed.

The layout of each framework. verl: `global_step_N/`, of FSDP one `{model,optim,extra_state}_world_size_W_rank_R.pt` a
rank, flat (SFT) or below `actor/` and `critic/`, of Megatron a distributed checkpoint; source: verl's docs, "Checkpoint
Saving Directory Structure". Megatron-LM and slime: `iter_NNNNNNN/`, whose `.metadata` is written last, and the tracker
next to it. OpenRLHF: DeepSpeed's `global_stepN/` with the file `latest` next to it, and `global_stepN_hf/`. Hugging
Face: `checkpoint-N/`, or a model's directory. Ends, headers and lists of files are read, no weights.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlbox.amounts import align_translated, decimal_size_text
from rlbox.foreign import parse_digits, parse_untrusted_json
from rlbox.gate.files import find_safetensors_problem
from rlbox.i18n import _, join, translate
from rlbox.system.safe_files import MAX_DEPTH, open_regular_file, read_bytes, walk_non_directories

TRACKER_FILES = ("latest_checkpointed_iteration.txt", "latest")
"""Files that name the checkpoint to resume from: of verl and Megatron, and of DeepSpeed."""
MANIFEST_FILE = "checkpoint.json"
"""Lists every file of a checkpoint for a gate."""
_WRITTEN_RECENTLY_S = 300.0
_MAX_NUMBERS = 5
_MAX_TRACKER_BYTES = 1 << 12
_MAX_LIST_BYTES = 64 << 20

Framework = Literal["verl", "megatron", "deepspeed", "hf"]
CheckpointPart = Literal["model", "optimizer", "hf", "extra"]
_DIRECTORY_NAMES: tuple[tuple[Framework, re.Pattern[str]], ...] = (
    ("verl", re.compile(r"global_steps?_(?P<step>\d+)")),
    ("megatron", re.compile(r"iter_(?P<step>\d{7,})")),
    ("megatron", re.compile(r"release")),
    ("deepspeed", re.compile(r"global_step(?P<step>\d+)")),
    ("hf", re.compile(r"global_step(?P<step>\d+)_hf")),
    ("hf", re.compile(r"checkpoint-(?P<step>\d+)")),
)
_FSDP_RANK = re.compile(r"(?P<name>(?:.*/)?(?:model|optim|extra_state)_world_size_(\d+)_rank_)(\d+)\.pt")
_ZERO_RANK = re.compile(r"(?:.*/)?(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)\Z")
_DISTRIBUTED_FILE = re.compile(rb"__\d+_\d+\.distcp")
_MODEL_NAMES = ("model", "pytorch_model", "adapter_model")


@dataclass(frozen=True, kw_only=True)
class _CheckpointFile:
    """A file of a checkpoint: its path below it, bytes, seconds since it was written.

    `problem` says why it is not complete; `listed_files` are the files that it lists, where it is an index.
    """

    path: str
    size: int
    age_s: float = 1e9
    problem: str = ""
    listed_files: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def part(self) -> CheckpointPart:
        *directories, name = self.path.split("/")
        if any(directory == "huggingface" or directory.endswith("_huggingface") for directory in directories):
            return "hf"
        if "optimizer" in directories or ("optim" in name and not name.startswith(_MODEL_NAMES)):
            return "optimizer"
        if name.startswith(_MODEL_NAMES) or "model" in directories or "_model_states" in name:
            return "model"
        return "model" if name.endswith(".distcp") else "extra"

    def is_hf_weights_file(self, framework: Framework) -> bool:
        """Whether it holds weights in Hugging Face's form; verl writes a configuration without them, too."""
        return self.path.endswith((".safetensors", ".bin")) and (framework == "hf" or self.part == "hf")


class CheckpointDirectory(NamedTuple):
    """A directory that is a checkpoint by its name; `step` is None where the name has none."""

    path: Path
    framework: Framework
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """`is_named_by_tracker`: the tracker names it, so that a run resumes from it."""

    path: str
    framework: Framework
    step: int | None
    files: tuple[_CheckpointFile, ...]
    problems: tuple[str, ...]
    is_named_by_tracker: bool

    @property
    def bytes_by_part(self) -> dict[CheckpointPart, int]:
        sizes: dict[CheckpointPart, int] = {}
        for file in self.files:
            part = "hf" if self.framework == "hf" and file.part == "model" else file.part
            sizes[part] = sizes.get(part, 0) + file.size
        return sizes

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_complete(self) -> bool:
        return not self.problems

    @property
    def may_be_in_progress(self) -> bool:
        return bool(self.problems) and any(file.age_s < _WRITTEN_RECENTLY_S for file in self.files)

    @property
    def lists_hf_weights(self) -> bool:
        """Whether it can be evaluated."""
        return any(file.is_hf_weights_file(self.framework) for file in self.files)

    @property
    def has_optimizer_state(self) -> bool:
        """Whether a run can resume from it; Megatron and DeepSpeed keep the optimizer among the model's files, too."""
        return "optimizer" in self.bytes_by_part or (self.framework == "megatron" and "model" in self.bytes_by_part)

    def as_json(self) -> dict[str, Any]:
        facts = {"path": self.path, "kind": self.framework, "step": self.step, "whole": self.is_complete}
        flags = {
            "hf_export": self.lists_hf_weights,
            "optimizer": self.has_optimizer_state,
            "latest": self.is_named_by_tracker,
        }
        flags |= {"being_written": self.may_be_in_progress}
        return {**facts, "size": self.size, **flags, "parts": self.bytes_by_part, "problems": list(self.problems)}


class RemovablePathPattern(NamedTuple):
    """A path, or pattern, that nothing needs, for the reason `why`; its bytes."""

    path: str
    size: int
    why: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSeries:
    """The checkpoints of one training, oldest first; `tracker_text` names one, None: there is none."""

    path: str
    checkpoints: tuple[Checkpoint, ...]
    tracker_text: str | None
    problems: tuple[str, ...]
    removable: tuple[RemovablePathPattern, ...]

    @property
    def has_no_problems(self) -> bool:
        return not self.problems and all(checkpoint.is_complete for checkpoint in self.checkpoints)

    def as_json(self) -> dict[str, Any]:
        facts = {
            "path": self.path,
            "tracker": self.tracker_text,
            "whole": self.has_no_problems,
            "problems": list(self.problems),
        }
        checkpoints = [checkpoint.as_json() for checkpoint in self.checkpoints]
        removable = [row._asdict() for row in self.removable]
        return {**facts, "checkpoints": checkpoints, "removable": removable}


def analyze_checkpoint_series(directory: Path, checkpoints: Sequence[CheckpointDirectory]) -> CheckpointSeries:
    """Return the checkpoints of one directory, judged by their files and by the tracker beside them."""
    tracker = _read_tracker(directory)
    ordered = sorted(
        checkpoints, key=lambda checkpoint: (-1 if checkpoint.step is None else checkpoint.step, checkpoint)
    )
    analyzed = tuple(_analyze(checkpoint, tracker) for checkpoint in ordered)
    problems = []
    if tracker is not None and not any(checkpoint.is_named_by_tracker for checkpoint in analyzed):
        missing = _("the tracker names {step!r}, which is not there: nothing can be resumed")
        problems.append(missing.format(step=tracker))
    if tracker is None and any(checkpoint.framework == "megatron" for checkpoint in analyzed):
        problems.append(_("{file} is missing: Megatron loads nothing without it").format(file=TRACKER_FILES[0]))
    return CheckpointSeries(
        path=str(directory),
        checkpoints=analyzed,
        tracker_text=tracker,
        problems=tuple(problems),
        removable=tuple(_list_removable(analyzed)),
    )


def _analyze(directory: CheckpointDirectory, tracker: str | None) -> Checkpoint:
    path, framework, step = directory
    now = time.time()
    files = tuple(
        _inspect(path / name, name, now) for name in sorted(name for name, __ in walk_non_directories(path.resolve()))
    )
    problems = list(_find_problems(framework, files))
    tracked_step = parse_digits(tracker or "")
    if framework in ("verl", "megatron") and tracked_step is not None and (step or 0) > tracked_step:
        problems.append(_("it was never finished: the tracker names step {step}").format(step=tracker))
    return Checkpoint(
        path=str(path),
        framework=framework,
        step=step,
        files=files,
        problems=tuple(dict.fromkeys(problems)),
        is_named_by_tracker=tracker is not None and tracker in (str(step), path.name),
    )


def _list_removable(checkpoints: Sequence[Checkpoint]) -> Iterator[RemovablePathPattern]:
    """Yield incomplete checkpoints, and the optimizer of those that have an export and that no run resumes from.

    Never the one that the tracker names, the newest complete one, and what may be in progress. Of one without an export
    nothing, since it cannot be evaluated without all of its files.
    """
    resumable = [checkpoint for checkpoint in checkpoints if checkpoint.is_complete and checkpoint.has_optimizer_state]
    if not resumable:
        return
    kept = next((checkpoint for checkpoint in resumable if checkpoint.is_named_by_tracker), resumable[-1])
    for checkpoint in checkpoints:
        if checkpoint is kept or checkpoint.is_named_by_tracker or checkpoint.may_be_in_progress:
            continue
        if not checkpoint.is_complete:
            reason = _("it is truncated, and step {step} is complete").format(step=kept.step)
            yield RemovablePathPattern(checkpoint.path, checkpoint.size, reason)
        elif checkpoint.lists_hf_weights:
            yield from _list_optimizer(checkpoint)


def _list_optimizer(checkpoint: Checkpoint) -> Iterator[RemovablePathPattern]:
    sizes: dict[str, int] = {}
    for file in checkpoint.files:
        if file.part == "optimizer":
            *directories, name = file.path.split("/")
            if "optimizer" in directories:
                parts = directories[: directories.index("optimizer") + 1]
            else:
                parts = [*directories, f"{name.partition('_rank_')[0]}*"]
            sizes["/".join(parts)] = sizes.get("/".join(parts), 0) + file.size
    for below, size in sizes.items():
        reason = _("the optimizer of a step that no run resumes from")
        yield RemovablePathPattern(f"{checkpoint.path}/{below}", size, reason)


def _find_problems(framework: Framework, files: Sequence[_CheckpointFile]) -> Iterator[str]:
    if not files:
        yield _("it is empty")
        return
    names = {file.path for file in files}
    yield from (join(": ", (file.path, file.problem)) for file in files if file.problem)
    yield from _find_missing_ranks(files)
    for file in files:
        missing = [name for name in file.listed_files if _join(file.directory, name) not in names]
        if missing:
            shown = ", ".join(missing[:3]) + (" …" if missing[3:] else "")
            yield _("{file} names {files}: {count} missing").format(file=file.path, files=shown, count=len(missing))
    yield from _find_missing_shards(names)
    exports = {file.directory for file in files if file.is_hf_weights_file(framework)}
    if not exports and (framework == "hf" or all(file.part != "model" for file in files)):
        yield _("it holds no weights")
    for directory in sorted(exports):
        if not names & {_join(directory, "config.json"), _join(directory, "adapter_config.json")}:
            yield _("{file} is missing").format(file=_join(directory, "config.json"))
    for directory in sorted({file.directory for file in files if file.path.endswith(".distcp")}):
        if _join(directory, ".metadata") not in names:
            yield _WRITTEN_LAST.format(file=_join(directory, ".metadata"))


def _find_missing_ranks(files: Sequence[_CheckpointFile]) -> Iterator[str]:
    fsdp: dict[tuple[str, int], set[int]] = {}
    zero: dict[str, set[int]] = {}
    world_sizes: dict[str, set[int]] = {}
    for file in files:
        if match := _FSDP_RANK.fullmatch(file.path):
            fsdp.setdefault((match["name"], int(match[2])), set()).add(int(match[3]))
            world_sizes.setdefault(file.directory, set()).add(int(match[2]))
        elif match := _ZERO_RANK.fullmatch(file.path):
            zero.setdefault(match[3], set()).add(int(match[1]))
    for (name, count), ranks in fsdp.items():
        yield from _report_missing(_RANKS, f"{name}*.pt", count, ranks)
    for directory, counts in sorted(world_sizes.items()):
        if len(counts) > 1:
            *smaller, largest = sorted(counts)
            mixed = _("files of {folder} are of {few} and of {many} ranks")
            mixed = mixed if directory else _("its files are of {few} and of {many} ranks")
            yield mixed.format(folder=directory, few=", ".join(map(str, smaller)), many=largest)
    count = max(set().union(*zero.values()), default=-1) + 1
    for part, ranks in sorted(zero.items()):
        yield from _report_missing(_RANKS, f"zero_pp_rank_*_{part}_states.pt", count, ranks)


def _find_missing_shards(names: set[str]) -> Iterator[str]:
    """Yield the numbered shards that are missing; where all are there, the index: it is written last."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    for name in sorted(names):
        if match := _SHARD.search(name):
            groups.setdefault((name[: match.start()], int(match[2]), match[3]), set()).add(int(match[1]))
    for (stem, count, suffix), shards in groups.items():
        index = f"{stem}.{suffix}.index.json"
        if index in names:
            continue  # which names all of them
        problems = list(_report_missing(_SHARDS, stem, count, shards, first=1))
        yield from problems or [_WRITTEN_LAST.format(file=index)]


_WRITTEN_LAST = _("{file} is missing, which is written last")
_RANKS = _("{file}: ranks missing: {numbers} (of {count})")
_SHARDS = _("{file}: shards missing: {numbers} (of {count})")


def _report_missing(message: str, file: str, count: int, present: set[int], first: int = 0) -> Iterator[str]:
    # a file's name may make the count as great as it likes
    numbers = (number for number in range(first, first + count) if number not in present)
    missing = list(itertools.islice(numbers, _MAX_NUMBERS + 1))
    if missing:
        shown = ", ".join(map(str, missing[:_MAX_NUMBERS])) + (" …" if missing[_MAX_NUMBERS:] else "")
        yield message.format(file=file, numbers=shown, count=count)


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def find_checkpoints_by_parent(root: Path) -> dict[Path, list[CheckpointDirectory]]:
    """Return the checkpoints at, or below, `root` by the directory that they lie in.

    A model's directory is one only where `root` is it, or where it has a manifest, as those that gates ask for.
    """
    if checkpoint := _parse_name(root) or (CheckpointDirectory(root, "hf", None) if _is_model(root) else None):
        return {root.parent: [checkpoint]}
    series: dict[Path, list[CheckpointDirectory]] = {}
    directories = [root]
    while directories:
        directory = directories.pop()
        for path in _list_directories(directory):
            if checkpoint := _identify(path):
                series.setdefault(directory, []).append(checkpoint)
            elif len(directory.parts) - len(root.parts) < MAX_DEPTH:
                directories.append(path)
    return series


def _list_directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if not name.startswith(".")]


def _identify(path: Path) -> CheckpointDirectory | None:
    checkpoint = _parse_name(path)
    if checkpoint is None and (path / MANIFEST_FILE).is_file() and _is_model(path):
        return CheckpointDirectory(path, "hf", None)
    if checkpoint and checkpoint.step is None and not (path.parent / TRACKER_FILES[0]).is_file():
        return None  # `release` is a common name
    return checkpoint


def _parse_name(path: Path) -> CheckpointDirectory | None:
    for framework, pattern in _DIRECTORY_NAMES:
        if match := pattern.fullmatch(path.name):
            step = match.groupdict().get("step")
            return CheckpointDirectory(path, framework, int(step) if step else None)
    return None


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or any(path.glob("*.safetensors"))


def _read_tracker(directory: Path) -> str | None:
    for name in TRACKER_FILES:
        with contextlib.suppress(OSError):
            return (
                read_bytes(directory / name, _MAX_TRACKER_BYTES, follow_links=True).decode("utf-8", "replace").strip()
            )
    return None


def _inspect(path: Path, name: str, now: float) -> _CheckpointFile:
    try:
        status = path.stat()
        problem, listed = _read_structure(path, status)
    except OSError as error:
        return _CheckpointFile(path=name, size=0, problem=str(error.strerror))
    age_s = max(now - status.st_mtime, 0.0)
    return _CheckpointFile(path=name, size=status.st_size, age_s=age_s, problem=problem, listed_files=listed)


def _read_structure(path: Path, status: os.stat_result) -> tuple[str, tuple[str, ...]]:
    """Return why a file is not complete (empty: nothing is wrong), and the files that it lists."""
    if not stat.S_ISREG(status.st_mode):
        return _("it is not a regular file"), ()
    if not status.st_size:
        return _("it is empty"), ()
    if path.name.endswith(".safetensors"):
        problem = find_safetensors_problem(path)
        return _("it {problem}").format(problem=problem) if problem else "", ()
    if path.name.endswith((".pt", ".pth", ".bin")):
        with open_regular_file(
            path, follow_links=True
        ) as file:  # torch.save: a ZIP archive, whose directory is at its end
            is_archive = file.read(4) == b"PK\x03\x04"  # the form before PyTorch 1.6 is not
            return _("its end is missing") if is_archive and not zipfile.is_zipfile(file) else "", ()
    if status.st_size > _MAX_LIST_BYTES:
        return "", ()
    if path.name.endswith(".index.json"):
        return _read_list(path, "weight_map", _("it is not an index of weights"))
    if path.name == MANIFEST_FILE:
        return _read_list(path, "files", _("it is not a manifest"))
    if path.name == ".metadata":
        names = _DISTRIBUTED_FILE.findall(read_bytes(path, _MAX_LIST_BYTES, follow_links=True))
        return "", tuple(sorted({name.decode() for name in names}))
    return "", ()


def _read_list(path: Path, key: str, problem: str) -> tuple[str, tuple[str, ...]]:
    """Return the files that an index maps tensors to, or that a manifest has facts of."""
    try:
        entries = parse_untrusted_json(read_bytes(path, _MAX_LIST_BYTES, follow_links=True))[key]
        names = {name if isinstance(value, dict) else value for name, value in entries.items()}
        return "", tuple(sorted(os.fspath(name) for name in names))
    except (ValueError, KeyError, TypeError, AttributeError):
        return problem, ()


def format_checkpoint_series(all_series: Sequence[CheckpointSeries], *, show_removable: bool) -> str:
    return "\n\n".join("\n".join(map(translate, _format_one(series, show_removable))) for series in all_series)


def _format_one(series: CheckpointSeries, show_removable: bool) -> Iterator[str]:
    head = (_("step"), _("kind"), _("state"), _("size"), _("model"), _("optimizer"), _("hf export"))
    yield series.path
    yield from (f"  {line}" for line in align_translated([head, *map(_format_row, series.checkpoints)]))
    for checkpoint in series.checkpoints:
        name = checkpoint.path.rpartition("/")[2]
        yield from (f"  {name}: {translate(problem)}" for problem in checkpoint.problems)
    yield from (f"  {translate(problem)}" for problem in series.problems)
    if show_removable and series.removable:
        size = decimal_size_text(sum(row.size for row in series.removable))
        yield _("  can be removed, {size}:").format(size=size)
        for row in series.removable:
            yield f"    {decimal_size_text(row.size):>9}  {row.path}  ({translate(row.why)})"


def _format_row(checkpoint: Checkpoint) -> tuple[str, ...]:
    state = _("torn, or being written") if checkpoint.may_be_in_progress else _("torn")
    state = _("whole") if checkpoint.is_complete else state
    sizes = {part: decimal_size_text(size) for part, size in checkpoint.bytes_by_part.items() if size}
    optimizer = _("with the model") if checkpoint.framework == "megatron" and checkpoint.has_optimizer_state else "-"
    return (
        "-" if checkpoint.step is None else str(checkpoint.step),
        checkpoint.framework,
        state + (_(", latest") if checkpoint.is_named_by_tracker else ""),
        decimal_size_text(checkpoint.size),
        sizes.get("model", "-"),
        sizes.get("optimizer", optimizer),
        decimal_size_text(checkpoint.bytes_by_part.get("hf", 0)) if checkpoint.lists_hf_weights else "-",
    )
