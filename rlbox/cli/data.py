"""`rlbox data`, `ckpt` and `warm`: training data, checkpoints, and files read into memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import click

from rlbox.amounts import decimal_size_text, duration_text
from rlbox.app import App
from rlbox.cli.options import NON_NEGATIVE, dry_run_option, pass_app_with_shared_options, target_and_data_options
from rlbox.doctor.data_check import check_training_data, write_first_rows
from rlbox.errors import MachineError, SpecError, WorkFailed
from rlbox.evaluation.checkpoints import analyze_checkpoint_series, find_checkpoints_by_parent, format_checkpoint_series
from rlbox.i18n import _, ngettext, translate
from rlbox.run.data_disk import locate_run_store_or_run_remotely_and_exit
from rlbox.system.limits import get_available_memory_bytes
from rlbox.system.progress import show_byte_progress

_FILE = click.Path(path_type=Path)
_THREADS = 4  # measured: one thread reads at half the speed, sixteen no faster
_BLOCK_BYTES = 1 << 20


@click.command("data")
@click.argument("action", type=click.Choice(["check", "tiny"]))
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--val", metavar="FILE", type=_FILE, help="check: the validation rows; none may be in FILE.")
@click.option("--column", metavar="NAME", default="", help="check: where the conversations are [messages, prompt].")
@click.option("--val-rows", metavar="N", type=click.IntRange(1), help="check: rows that must be there.")
@click.option("--rows", metavar="N", type=click.IntRange(1), help="check: the same of FILE; tiny: rows to write [2].")
@click.option("--output", "to", metavar="FILE", type=_FILE, help="tiny: where to [$DATA_OUTPUT_DIR/…_tiny.parquet].")
@click.option("--python", metavar="FILE", default="", help="Interpreter with pyarrow.")
@click.option(
    "--timeout",
    type=NON_NEGATIVE,
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="Time limit for the complete check.",
)
@dry_run_option
@pass_app_with_shared_options
def check_data_or_write_first_rows(
    app: App,
    action: Literal["check", "tiny"],
    file: Path,
    val: Path | None,
    column: str,
    val_rows: int | None,
    rows: int | None,
    to: Path | None,
    python: str,
    timeout: float,
) -> int:
    """Check rows, columns, conversations and overlap of FILE, or write its first rows to a separate
    file.

    The stack's own interpreter reads the data: in an image, on an applied machine, or one named with --python.

    \b
    Examples:
      rlbox data check data/sft_train.parquet --val data/sft_val.parquet --rows 2020 --val-rows 200
      rlbox data tiny data/train.parquet --output data/train_tiny.parquet
    """
    if action == "tiny":
        return write_first_rows(app, file, to, rows or 2, python, timeout)
    expected = {name: number for name, number in (("train", rows), ("val", val_rows)) if number}
    files = {"train": file, **({"val": val} if val else {})}
    return check_training_data(app, files, column, expected, python, timeout)


@click.command("ckpt")
@click.argument("action", type=click.Choice(["ls", "check"]))
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@target_and_data_options
@pass_app_with_shared_options
def list_or_check_checkpoints(
    app: App, action: Literal["ls", "check"], paths: tuple[Path, ...], target: str, data: str | None
) -> int:
    """List the checkpoints below PATH, by default on the data disk, or check that all are complete.

    Supports checkpoints of verl, Megatron and slime, DeepSpeed and OpenRLHF, and Hugging Face. `ls` also lists
    removable checkpoints and removes nothing; `check` gives exit code 1 if one is incomplete, or the tracker
    names a missing one.

    \b
    Examples:
      rlbox ckpt ls
      rlbox ckpt check /data/ckpts/holdem
    """
    roots = [path.absolute() for path in paths] or [
        locate_run_store_or_run_remotely_and_exit(app, target, data).data_dir
    ]
    if missing := [str(path) for path in paths if not path.is_dir()]:
        raise SpecError(
            _("there is no such folder"),
            where=missing[0],
            next_step=_("pass a folder that contains checkpoints: rlbox ckpt ls PATH"),
        )
    found = {directory: rows for root in roots for directory, rows in find_checkpoints_by_parent(root).items()}
    series = [analyze_checkpoint_series(directory, rows) for directory, rows in sorted(found.items())]
    shown = [one for one in series if action == "ls" or app.verbosity > 0 or not one.has_no_problems]
    text = format_checkpoint_series(shown, show_removable=action == "ls") if series else _("no checkpoint yet")
    app.output({"series": [one.as_json() for one in series]}, text)
    torn = sum(not row.is_complete for one in series for row in one.checkpoints)
    total = sum(len(one.checkpoints) for one in series)
    summary = (
        ngettext("ckpt: {count} checkpoint, {torn} torn", "ckpt: {count} checkpoints, {torn} torn", total)
        if torn
        else ngettext("ckpt: {count} checkpoint, none torn", "ckpt: {count} checkpoints, none torn", total)
    )
    app.print_status(summary.format(count=total, torn=torn))
    return WorkFailed.exit_code if action == "check" and not all(one.has_no_problems for one in series) else 0


@click.command("warm")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@dry_run_option
@pass_app_with_shared_options
def read_files_into_page_cache(app: App, paths: tuple[Path, ...]) -> int:
    """Read files, or all files of folders, into memory, so that the next load does not wait for the disk.

    Files larger than the memory are rejected, since reading them would only evict others.

    \b
    Examples:
      rlbox warm /data/models/Qwen3-8B
    """
    files = _find_files(paths)
    total = sum(files.values())
    data = {"size": total, "files": [{"path": str(path), "size": size} for path, size in files.items()]}
    size = decimal_size_text(total)
    text = ngettext("{count} file, {size}", "{count} files, {size}", len(files)).format(count=len(files), size=size)
    with app.collecting_refusals_if_dry_run("memory"):
        _require_free_memory(files, get_available_memory_bytes())
    if app.dry_run:
        return app.print_dry_run(data, text, _("read {size} into memory").format(size=size))
    began = time.monotonic()
    progress = show_byte_progress(app, translate(_("into memory")), total)
    with progress as on_bytes, ThreadPoolExecutor(_THREADS) as workers:
        list(workers.map(lambda path: _read_file(path, on_bytes), files))
    seconds = max(time.monotonic() - began, 1e-6)
    speed = decimal_size_text(total / seconds)
    read = _("{files}: read into memory in {time} ({speed}/s)")
    app.output(
        {**data, "seconds": round(seconds, 6)}, read.format(files=text, time=duration_text(seconds), speed=speed)
    )
    return 0


def _find_files(paths: Sequence[Path]) -> dict[Path, int]:
    """Return the sizes of the files at, or below, `paths`, each once; links are followed, as in a Hugging Face cache.

    Raises SpecError: a path is missing, or there is no file below it.
    """
    files: dict[tuple[int, int], tuple[Path, int]] = {}
    for path in paths:
        names = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
        if not names:
            raise SpecError(
                _("there is no file to warm"), where=str(path), next_step=_("name a file, or a model's folder")
            )
        for name in names:
            status = name.stat()
            files.setdefault((status.st_dev, status.st_ino), (name, status.st_size))
    return dict(files.values())


def _require_free_memory(files: dict[Path, int], available: int) -> None:
    """Refuse files that `available` bytes of memory cannot hold: reading their end would evict their beginning."""
    if (total := sum(files.values())) <= available:
        return
    first = next(iter(files))
    raise MachineError(
        _("{size} do not stay in memory: the page cache can have {room} here").format(
            size=decimal_size_text(total), room=decimal_size_text(available)
        ),
        where=str(first)
        if len(files) == 1
        else _("{count} files from {first} on").format(count=len(files), first=first),
        next_step=_("warm fewer files, end what uses the memory, or raise the container's limit (run.memory_gib)"),
    )


def _read_file(path: Path, on_bytes: Callable[[int], None]) -> None:
    buffer = bytearray(_BLOCK_BYTES)
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                on_bytes(count)
    except OSError as error:
        raise WorkFailed(
            _("the file cannot be read: {strerror}").format(strerror=error.strerror), where=str(path)
        ) from error
