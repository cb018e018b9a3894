"""Checkpoints of trainers on a disk: which are complete, from which a run resumes, which can be removed.

The layout of each framework. verl: `global_step_N/`, of FSDP one `{model,optim,extra_state}_world_size_W_rank_R.pt` a
rank, flat (SFT) or below `actor/` and `critic/`, of Megatron a distributed checkpoint; source: verl's docs, "Checkpoint
Saving Directory Structure". Megatron-LM and slime: `iter_NNNNNNN/`, whose `.metadata` is written last, and the tracker
next to it. OpenRLHF: DeepSpeed's `global_stepN/` with the file `latest` next to it, and `global_stepN_hf/`. Hugging
Face: `checkpoint-N/`, or a model's directory. Ends, headers and lists of files are read, no weights.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlbox.amounts import columns, size_text
from rlbox.foreign import parse_json, whole_number
from rlbox.gate.safetensors_check import find_safetensors_problem
from rlbox.i18n import _
from rlbox.system.safe_files import MAX_DEPTH, open_regular_file, read_bytes, walk_files

TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
"""Files that name the checkpoint to resume from: of verl and Megatron, and of DeepSpeed."""
_BUSY_S = 300.0
_SHOWN = 5

CheckpointKind = Literal["verl", "megatron", "deepspeed", "hf"]
FOLDERS: tuple[tuple[CheckpointKind, re.Pattern[str]], ...] = (
    ("verl", re.compile(r"global_steps?_(?P<step>\d+)")),
    ("megatron", re.compile(r"iter_(?P<step>\d{7,})")),
    ("megatron", re.compile(r"release")),
    ("deepspeed", re.compile(r"global_step(?P<step>\d+)")),
    ("hf", re.compile(r"global_step(?P<step>\d+)_hf")),
    ("hf", re.compile(r"checkpoint-(?P<step>\d+)")),
)
_RANK = re.compile(r"(?:(.*)/)?(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")
_ZERO = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")
_WEIGHTS = re.compile(r".*\.(safetensors|bin)")
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)\Z")
_MODELS = ("model", "pytorch_model", "adapter_model")


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """A file of a checkpoint: its path below it, bytes, how many seconds ago it was written.

    `damage` says why it is not whole; `names` are the files that it lists, where it is such a list.
    """

    path: str
    size: int
    age_s: float = 1e9
    damage: str = ""
    names: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder it is in, below the checkpoint; empty for the checkpoint itself."""
        return self.path.rpartition("/")[0]

    @property
    def part(self) -> str:
        """What it belongs to: `hf`, `optimizer`, `model` or `extra`."""
        folders, name = self.path.split("/")[:-1], self.path.rpartition("/")[2]
        if any(folder == "huggingface" or folder.endswith("_huggingface") for folder in folders):
            return "hf"
        if "optimizer" in folders or ("optim" in name and not name.startswith(_MODELS)):
            return "optimizer"
        if name.startswith(_MODELS) or "model" in folders or "_model_states" in name or name.endswith(".distcp"):
            return "model"
        return "extra"

    @property
    def weights(self) -> bool:
        """Whether it has weights in Hugging Face's form."""
        return _WEIGHTS.fullmatch(self.path) is not None


def parse_checkpoint_name(folder: str) -> tuple[CheckpointKind, int | None] | None:
    """Return what a folder of this name is, with its step; None when it is no checkpoint."""
    for kind, pattern in FOLDERS:
        if match := pattern.fullmatch(folder):
            step = match.groupdict().get("step")
            return kind, int(step) if step else None
    return None


def has_hf_export(kind: CheckpointKind, entries: Sequence[CheckpointFile]) -> bool:
    """Return whether weights are there in Hugging Face's form; verl writes configuration without them, too."""
    return any(entry.weights for entry in entries if kind == "hf" or entry.part == "hf")


def find_file_problems(kind: CheckpointKind, entries: Sequence[CheckpointFile]) -> Iterator[str]:
    if not entries:
        yield "it is empty"
        return
    yield from (f"{entry.path}: {entry.damage}" for entry in entries if entry.damage)
    yield from _ranks(entries)
    yield from _zero(entries)
    yield from _lists(entries)
    yield from _numbered(entries)
    if not has_hf_export(kind, entries) and (kind == "hf" or all(entry.part != "model" for entry in entries)):
        yield "it holds no weights"
    yield from _beside(kind, entries)


def _beside(kind: CheckpointKind, entries: Sequence[CheckpointFile]) -> Iterator[str]:
    """Yield what must lie beside weights, and beside the pieces of a distributed checkpoint."""
    names = {entry.path for entry in entries}
    exports = {entry.folder for entry in entries if entry.weights and (kind == "hf" or entry.part == "hf")}
    for folder in sorted(exports):
        if not names & {_join(folder, "config.json"), _join(folder, "adapter_config.json")}:
            yield f"{_join(folder, 'config.json')} is missing"
    for folder in sorted({entry.folder for entry in entries if entry.path.endswith(".distcp")}):
        if _join(folder, ".metadata") not in names:
            yield f"{_join(folder, '.metadata')} is missing, which is written last"


def _ranks(entries: Sequence[CheckpointFile]) -> Iterator[str]:
    groups: dict[tuple[str, str, int], set[int]] = {}
    for entry in entries:
        if match := _RANK.fullmatch(entry.path):
            groups.setdefault((match[1] or "", match[2], int(match[3])), set()).add(int(match[4]))
    for (folder, what, world), ranks in groups.items():
        if missing := _missing(world, ranks):
            name = f"{_join(folder, what)}_world_size_{world}_rank_*.pt"
            yield f"{name}: ranks missing: {_numbers(missing)} (of {world})"
    for folder in sorted({group[0] for group in groups}):
        worlds = sorted({world for name, __, world in groups if name == folder})
        if len(worlds) > 1:
            some, last = ", ".join(map(str, worlds[:-1])), worlds[-1]
            whose = f"files of {folder} are of {some} and of {last} ranks"
            yield whose if folder else f"its files are of {some} and of {last} ranks"


def _zero(entries: Sequence[CheckpointFile]) -> Iterator[str]:
    """Yield DeepSpeed's ranks that miss a file which others have."""
    found: dict[str, set[int]] = {"model": set(), "optim": set()}
    for entry in entries:
        if match := _ZERO.fullmatch(entry.path.rpartition("/")[2]):
            found[match[3]].add(int(match[1]))
    count = max(found["model"] | found["optim"], default=-1) + 1
    for what, ranks in found.items():
        if ranks and (missing := _missing(count, ranks)):
            yield f"zero_pp_rank_*_{what}_states.pt: ranks missing: {_numbers(missing)} (of {count})"


def _lists(entries: Sequence[CheckpointFile]) -> Iterator[str]:
    """Yield what an index names and is not there."""
    names = {entry.path for entry in entries}
    for entry in entries:
        missing = [name for name in entry.names if _join(entry.folder, name) not in names]
        if missing:
            yield f"{entry.path} names {', '.join(missing[:3])}{' …' if missing[3:] else ''}: {len(missing)} missing"


def _numbered(entries: Sequence[CheckpointFile]) -> Iterator[str]:
    """Yield which of numbered shards are missing, and where no index says what is in them: it is written last."""
    groups: dict[tuple[str, int, str], set[int]] = {}
    for entry in entries:
        if match := _NUMBERED.search(entry.path):
            groups.setdefault((entry.path[: match.start()], int(match[2]), match[3]), set()).add(int(match[1]) - 1)
    names = {entry.path for entry in entries}
    for (stem, count, kind), found in groups.items():
        if (index := f"{stem}.{kind}.index.json") in names:
            continue  # which names all of them
        if missing := _missing(count, found):
            numbers = [number + 1 for number in missing]
            yield f"{stem}: shards missing: {_numbers(numbers)} (of {count})"
        else:
            yield f"{index} is missing, which is written last"


def _missing(count: int, ranks: Set[int]) -> list[int]:
    """Return the first numbers below `count` that are no ranks; a file's name may make it as great as it likes."""
    return list(itertools.islice((number for number in range(count) if number not in ranks), _SHOWN + 1))


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_SHOWN])) + (" …" if numbers[_SHOWN:] else "")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    `parts` maps `model`, `optimizer`, `hf`, `extra` to bytes. `exported`: weights are there in Hugging Face's form, so
    it can be evaluated. `latest`: the tracker names it, so a run resumes from it. `busy`: it may just be being written.
    """

    path: str
    kind: CheckpointKind
    step: int | None
    parts: Mapping[str, int]
    problems: tuple[str, ...] = ()
    exported: bool = False
    latest: bool = False
    busy: bool = False

    @property
    def size(self) -> int:
        return sum(self.parts.values())

    @property
    def whole(self) -> bool:
        return not self.problems

    @property
    def has_optimizer(self) -> bool:
        """Whether a run can resume from it; Megatron and DeepSpeed keep the optimizer among the model's files, too."""
        return "optimizer" in self.parts or (self.kind == "megatron" and "model" in self.parts)

    def as_json(self) -> dict[str, Any]:
        facts = {"path": self.path, "kind": self.kind, "step": self.step, "whole": self.whole, "size": self.size}
        flags = {"hf_export": self.exported, "optimizer": self.has_optimizer, "latest": self.latest}
        return {**facts, **flags, "being_written": self.busy, "parts": self.parts, "problems": list(self.problems)}


@dataclass(frozen=True, kw_only=True)
class RemovablePath:
    """What can be removed: a path, its bytes, and why nothing needs it."""

    path: str
    size: int
    why: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSeries:
    """The checkpoints of one training, oldest first; `tracker` is what names the one to resume from, None: nothing."""

    path: str
    checkpoints: tuple[Checkpoint, ...]
    tracker: str | None = None
    problems: tuple[str, ...] = ()
    spare: tuple[RemovablePath, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.problems and all(row.whole for row in self.checkpoints)

    def as_json(self) -> dict[str, Any]:
        rows = [row.as_json() for row in self.checkpoints]
        facts = {"path": self.path, "tracker": self.tracker, "whole": self.whole, "problems": list(self.problems)}
        return {**facts, "checkpoints": rows, "removable": [vars(row) for row in self.spare]}


@dataclass(frozen=True, kw_only=True)
class ScannedCheckpoint:
    """A checkpoint as it lies there: path, kind and step by its name, and its files."""

    path: str
    kind: CheckpointKind
    step: int | None
    entries: tuple[CheckpointFile, ...]


def analyze_series(path: str, checkpoints: Sequence[ScannedCheckpoint], tracker: str | None) -> CheckpointSeries:
    """Return the checkpoints of one folder, judged by their files and by the tracker beside them."""
    ordered = sorted(checkpoints, key=lambda row: (-1 if row.step is None else row.step, row.path))
    rows = tuple(_judge(row, tracker) for row in ordered)
    problems = []
    if tracker is not None and not any(row.latest for row in rows):
        problems.append(f"the tracker names {tracker!r}, which is not there: nothing can be resumed")
    if tracker is None and any(row.kind == "megatron" for row in rows):
        problems.append(f"{TRACKERS[0]} is missing: Megatron loads nothing without it")
    spare = _spare(rows, {row.path: row.entries for row in checkpoints})
    return CheckpointSeries(path=path, checkpoints=rows, tracker=tracker, problems=tuple(problems), spare=spare)


def _judge(found: ScannedCheckpoint, tracker: str | None) -> Checkpoint:
    problems = list(find_file_problems(found.kind, found.entries))
    step = whole_number(tracker or "")
    if found.kind in ("verl", "megatron") and step is not None and (found.step or 0) > step:
        problems.append(f"it was never finished: the tracker names step {tracker}")
    parts: dict[str, int] = {}
    for entry in found.entries:
        part = "hf" if found.kind == "hf" and entry.part == "model" else entry.part
        parts[part] = parts.get(part, 0) + entry.size
    return Checkpoint(
        path=found.path,
        kind=found.kind,
        step=found.step,
        parts=parts,
        problems=tuple(dict.fromkeys(problems)),
        exported=has_hf_export(found.kind, found.entries),
        latest=tracker is not None and tracker in (str(found.step), found.path.rpartition("/")[2]),
        busy=bool(problems) and any(entry.age_s < _BUSY_S for entry in found.entries),
    )


def _spare(rows: Sequence[Checkpoint], entries: Mapping[str, Sequence[CheckpointFile]]) -> tuple[RemovablePath, ...]:
    """Return torn checkpoints, and the optimizer of those that were exported and that no run resumes from.

    Never touched: the one that the tracker names, the newest whole one, and what may just be being written. Of one
    without an export nothing is spare, since it cannot be evaluated without all of its files.
    """
    able = [row for row in rows if row.whole and row.has_optimizer]
    kept = next((row for row in able if row.latest), able[-1] if able else None)
    found: list[RemovablePath] = []
    for row in rows:
        if kept is None or row is kept or row.latest or row.busy:
            continue
        if not row.whole:
            found.append(RemovablePath(path=row.path, size=row.size, why=f"it is torn, and step {kept.step} is whole"))
        elif row.exported:
            found += _optimizer(row.path, entries[row.path])
    return tuple(found)


def _optimizer(path: str, entries: Sequence[CheckpointFile]) -> list[RemovablePath]:
    """Return an optimizer's files: the folder where it has its own, else one pattern a folder."""
    sizes: dict[str, int] = {}
    for entry in entries:
        if entry.part == "optimizer":
            folders, name = entry.path.split("/")[:-1], entry.path.rpartition("/")[2]
            own = "optimizer" in folders
            at = folders[: folders.index("optimizer") + 1] if own else [*folders, f"{name.partition('_rank_')[0]}*"]
            sizes["/".join(at)] = sizes.get("/".join(at), 0) + entry.size
    why = "the optimizer of a step that no run resumes from"
    return [RemovablePath(path=f"{path}/{at}", size=size, why=why) for at, size in sizes.items()]


_DISTCP = re.compile(rb"__\d+_\d+\.distcp")
MANIFEST = "checkpoint.json"
"""Lists every file of a checkpoint that a gate holds against it."""
_TRACKER_BYTES = 1 << 12
_LIST_BYTES = 64 << 20


def scan_checkpoints(root: Path) -> dict[Path, list[ScannedCheckpoint]]:
    """Return the checkpoints at, or below, `root` by the folder that they lie in; they are not searched themselves.

    A model's folder is one only where `root` is it, or where it has a manifest, as those that gates ask for.
    """
    found: dict[Path, list[ScannedCheckpoint]] = {}
    if known := parse_checkpoint_name(root.name) or (("hf", None) if _is_model(root) else None):
        found[root.parent] = [_look(root, *known)]
        return found
    folders = [root]
    while folders:
        folder = folders.pop()
        names = [name for name in _folders(folder) if name[:1] != "."]
        here = {name: known for name in names if (known := _kind(folder / name))}
        if here:
            found[folder] = [_look(folder / name, *known) for name, known in here.items()]
        if len(folder.parts) - len(root.parts) < MAX_DEPTH:
            folders += [folder / name for name in names if name not in here]
    return found


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, links not among them; none of what cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def read_tracker(folder: Path) -> str | None:
    """Return what the tracker in a folder names; None where there is none."""
    for name in TRACKERS:
        try:
            return read_bytes(folder / name, _TRACKER_BYTES, follow_links=True).decode("utf-8", "replace").strip()
        except OSError:
            continue
    return None


def _kind(folder: Path) -> tuple[CheckpointKind, int | None] | None:
    known = parse_checkpoint_name(folder.name)
    if known is None and (folder / MANIFEST).is_file() and _is_model(folder):
        return "hf", None
    if known and known[1] is None and not (folder.parent / TRACKERS[0]).is_file():
        return None  # `release` is a common name
    return known


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or any(folder.glob("*.safetensors"))


def _look(folder: Path, kind: CheckpointKind, step: int | None) -> ScannedCheckpoint:
    return ScannedCheckpoint(path=str(folder), kind=kind, step=step, entries=list_files(folder))


def list_files(folder: Path) -> tuple[CheckpointFile, ...]:
    """Return the files below a folder, by their paths there, each looked at."""
    return tuple(sorted(_entries(folder), key=lambda entry: entry.path))


def _entries(folder: Path) -> Iterator[CheckpointFile]:
    now = time.time()
    for name, __ in walk_files(folder.resolve()):
        path = folder / name
        try:
            facts = path.stat()
            damage, listed = _inspect(path, facts)
        except OSError as error:
            yield CheckpointFile(path=name, size=0, damage=str(error.strerror))
            continue
        age_s = max(now - facts.st_mtime, 0.0)
        yield CheckpointFile(path=name, size=facts.st_size, age_s=age_s, damage=damage, names=listed)


def _inspect(path: Path, facts: os.stat_result) -> tuple[str, tuple[str, ...]]:
    """Return why a file is not whole (empty: nothing is wrong), and the files that it lists."""
    size = facts.st_size
    if not stat.S_ISREG(facts.st_mode):
        return "it is no regular file", ()
    if size == 0:
        return "it is empty", ()
    if path.name.endswith(".safetensors"):
        problem = find_safetensors_problem(path)
        return f"it {problem}" if problem else "", ()
    if path.name.endswith((".pt", ".pth", ".bin")):
        return _archive(path), ()
    if path.name.endswith(".index.json") and size <= _LIST_BYTES:
        return _listed(path, "weight_map", "it is no index of weights")
    if path.name == MANIFEST and size <= _LIST_BYTES:
        return _listed(path, "files", "it is no manifest")
    if path.name == ".metadata" and size <= _LIST_BYTES:
        return "", tuple(sorted({name.decode() for name in _DISTCP.findall(_read(path))}))
    return "", ()


def _archive(path: Path) -> str:
    """Return what is wrong with a file of torch.save: a ZIP archive, whose directory is at its end."""
    with open_regular_file(path, follow_links=True) as file:
        if file.read(4) != b"PK\x03\x04":
            return ""  # the form before PyTorch 1.6, of which nothing is told but by reading all
        return "" if zipfile.is_zipfile(file) else "its end is missing"


def _listed(path: Path, key: str, problem: str) -> tuple[str, tuple[str, ...]]:
    """Return the files that a list names: those that its rows lead to, or whose facts they are."""
    try:
        rows = parse_json(_read(path))[key]
        names = {name if isinstance(facts, dict) else facts for name, facts in rows.items()}
        if not all(isinstance(name, str) for name in names):
            raise ValueError(_("a name that is no text"))
        return "", tuple(sorted(names))
    except (ValueError, KeyError, TypeError, AttributeError):
        return problem, ()


def _read(path: Path) -> bytes:
    return read_bytes(path, _LIST_BYTES, follow_links=True)


_COLUMNS = ("step", "kind", "state", "size", "model", "optimizer", "hf export")


def format_series(all_series: Sequence[CheckpointSeries], *, removable: bool) -> str:
    """Return all series as text; what can be removed only when asked for."""
    return "\n\n".join("\n".join(_lines(series, removable)) for series in all_series)


def _lines(series: CheckpointSeries, removable: bool) -> Iterator[str]:
    yield series.path
    yield from (f"  {line}" for line in columns([_COLUMNS, *map(_row, series.checkpoints)]))
    for checkpoint in series.checkpoints:
        name = checkpoint.path.rpartition("/")[2]
        yield from (f"  {name}: {problem}" for problem in checkpoint.problems)
    yield from (f"  {problem}" for problem in series.problems)
    if removable and series.spare:
        yield f"  can be removed, {size_text(sum(row.size for row in series.spare))}:"
        yield from (f"    {size_text(row.size):>9}  {row.path}  ({row.why})" for row in series.spare)


def _row(row: Checkpoint) -> tuple[str, ...]:
    state = "whole" if row.whole else "torn, or being written" if row.busy else "torn"
    sizes = [size_text(row.parts[part]) if row.parts.get(part) else "-" for part in ("model", "optimizer")]
    if row.kind == "megatron" and row.has_optimizer and sizes[1] == "-":
        sizes[1] = "with the model"
    exported = size_text(row.parts.get("hf", 0)) if row.exported else "-"
    step = "-" if row.step is None else str(row.step)
    return (step, row.kind, state + (", latest" if row.latest else ""), size_text(row.size), *sizes, exported)
