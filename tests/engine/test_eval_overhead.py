"""All checkpoints of a run by the real vLLM of the target `local`: one engine for all, and what that costs.

`make eval-overhead` takes more rounds and problems (`RLBOX_EVAL_ROUNDS`, `RLBOX_EVAL_PROBLEMS`) and fails above 1.10
times the engine's own benchmark and a start; here the ratio is told alone. `RLBOX_EVAL_IMAGE` as in test_eval_real.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from enginebox import CHECKOUT, Box

ROUNDS = int(os.environ.get("RLBOX_EVAL_ROUNDS", "0"))
SIZE = ("--exports", "3", "--problems", os.environ.get("RLBOX_EVAL_PROBLEMS", "576")) if ROUNDS else (
    "--exports", "2", "--problems", "48", "--most", "1000"
)  # fmt: skip
SETTINGS = ("dtype=bfloat16", "enforce_eager=true", "max_model_len=256", "max_num_batched_tokens=16384")
MEMORY = f"kv_cache_memory_bytes={256 << 20}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of the target `local`."""
    if named := os.environ.get("RLBOX_EVAL_IMAGE"):
        return named
    box = Box(project=tmp_path_factory.mktemp("project"), data=tmp_path_factory.mktemp("disk"))
    built = box("build", "local", "--json")
    assert built.code == 0, built.err
    return str(built.data["image"])


def weights(folder: Path) -> list[str]:
    """Return how the weights of each checkpoint came into the engine, by step."""
    return [json.loads(path.read_text())["weights"] for path in sorted(folder.glob("*/run_info.json"))]


def test_one_engine_serves_all_checkpoints(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first time an exchange is proven by a second start; then there is one, and the results are the same bytes."""
    mounts = (f"--volume={CHECKOUT}:/src:ro", f"--volume={tmp_path}:/measure")
    words = ("run", "--rm", "--label=rlbox.test=eval", "--network=none", "--shm-size=1g", "--init", *mounts)
    overhead = ("/src/tests/evaluation/overhead.py", "--python", "/opt/venv/bin/python", "--folder", "/measure")
    settings = [word for text in (*SETTINGS, MEMORY) for word in ("--set", text)]
    entry = ("--env=PYTHONDONTWRITEBYTECODE=1", "--entrypoint=/opt/venv/bin/python", image, *overhead)
    argv = ["docker", *words, *entry, *SIZE, "--rounds", f"{ROUNDS or 1}", *settings]
    done = subprocess.run(argv, capture_output=True, text=True)
    with capsys.disabled():
        print(f"\n{done.stdout}")
    assert "proven: log-probabilities are equal to the last digit" in done.stdout, done.stderr + done.stdout
    started, exchanged = "started with them", "exchanged in the running engine"
    assert weights(tmp_path / "eval-1")[:2] == [started, started]
    later = weights(tmp_path / "eval-2")
    assert later == [started, *[exchanged] * (len(later) - 1)]
    for path in (tmp_path / "eval-1").glob("*/summary.json"):
        assert path.read_bytes() == (tmp_path / "eval-2" / path.parent.name / "summary.json").read_bytes()
    assert done.returncode == 0, done.stderr
