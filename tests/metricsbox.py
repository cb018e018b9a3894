"""The curves of one training, and the files of `tests/cases/metrics` that real writers made of them."""

from __future__ import annotations

import math
import struct
import tarfile
from pathlib import Path

from fakes import CHECKOUT

from rlbox.logs.metric_files import MetricFilesReader

CASES = CHECKOUT / "tests/cases/metrics"
NAMES = ("critic/score/mean", "actor/kl_loss", "perf/mfu/actor", "actor/entropy")
ROWS = [
    dict(zip(NAMES, (math.sin(n) / 3, 1e-3 / n, 0.4 + n * 1e-9, math.nan if n == 3 else 1 / n), strict=True))
    for n in range(1, 41)
]


def unpack_curves(folder: Path, only: str = "") -> list[Path]:
    """Write the recorded files whose path holds a text, and return them."""
    with tarfile.open(CASES / "curves.tar.xz") as archive:
        names = [name for name in archive.getnames() if only in name]
        archive.extractall(folder, [archive.getmember(name) for name in names], filter="data")
    return [folder / name for name in names]


def read_sources_with_equal_curves(run_dir: Path) -> list[str]:
    """Return the sources below a run directory, if all points are those of `ROWS` (TensorBoard: as 32-bit numbers)."""
    found: dict[str, dict[tuple[int | None, str], float]] = {}
    for source, row in MetricFilesReader(run_dir).read_new_rows():
        found.setdefault(source, {}).update({(row.step, name): value for name, value in row.values.items()})
    for source, curves in found.items():
        form = "<f" if source.startswith("tensorboard") else "<d"
        want = {(n, name): struct.pack(form, value) for n, row in enumerate(ROWS, 1) for name, value in row.items()}
        assert {key: struct.pack(form, value) for key, value in curves.items()} == want, source
    return list(found)
