"""All checkpoints of a run by the real vLLM of the target `local`: one engine for all, what it costs, and two engines.

With RLBOX_EVAL_ROUNDS and RLBOX_EVAL_PROBLEMS it takes more of both and fails above 1.10
times the engine's own benchmark and a start; here the ratio is told alone, and models that were hardly trained give
short answers. `RLBOX_EVAL_IMAGE` as in test_eval_real.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from enginebox import CHECKOUT

ROUNDS = int(os.environ.get("RLBOX_EVAL_ROUNDS", "0"))
SMALL = ("--exports", "2", "--problems", "24", "--steps", "20", "--lines", "2", "--most", "1000")
SIZE = ("--exports", "3", "--problems", os.environ.get("RLBOX_EVAL_PROBLEMS", "288")) if ROUNDS else SMALL
# seeded answers: no prompt may be cut in two on the CPU, see jobs/smoke.toml
SETTINGS = ("dtype=bfloat16", "enforce_eager=true", "max_model_len=512", "max_num_batched_tokens=16384")
SET = [word for text in (*SETTINGS, f"kv_cache_memory_bytes={256 << 20}") for word in ("--set", text)]
PYTHON = "/opt/venv/bin/python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the programs in the container make: checkpoints, problems, results."""
    return tmp_path_factory.mktemp("measure")


def inside(image: str, folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Carry out a line of the image's interpreter in a container, with this checkout's rlbox."""
    mounts = (f"--volume={CHECKOUT}:/src:ro", f"--volume={folder}:/measure")
    env = ("--env=PYTHONPYCACHEPREFIX=/measure/pyc", "--env=PYTHONPATH=/src", "--env=XDG_CACHE_HOME=/measure/cache")
    box = ("run", "--rm", "--label=rlbox.test=eval", "--network=none", "--shm-size=1g", "--init", *mounts, *env)
    return subprocess.run(
        ["docker", *box, f"--entrypoint={PYTHON}", image, *words, *SET], capture_output=True, text=True
    )


def weights(folder: Path) -> list[str]:
    """Return how the weights of each checkpoint came into the engine, by step."""
    return [json.loads(path.read_text())["weights"] for path in sorted(folder.glob("*/run_info.json"))]


def test_one_engine_serves_all_checkpoints(eval_image: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first time an exchange is proven by a second start; then there is one, and the results are the same bytes."""
    overhead = ("/src/tests/evaluation/overhead.py", "--python", PYTHON, "--folder", "/measure")
    done = inside(eval_image, folder, (*overhead, *SIZE, "--rounds", f"{ROUNDS or 1}"))
    with capsys.disabled():
        print(f"\n{done.stdout}")
    assert "proven: log-probabilities are equal to the last digit" in done.stdout, done.stderr + done.stdout
    started, exchanged = "started with them", "exchanged in the running engine"
    assert weights(folder / "eval-1")[:2] == [started, started]
    later = weights(folder / "eval-2")
    assert later == [started, *[exchanged] * (len(later) - 1)]
    for path in (folder / "eval-1").glob("*/summary.json"):
        assert path.read_bytes() == (folder / "eval-2" / path.parent.name / "summary.json").read_bytes()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_servers_give_each_answer_of_one(eval_image: str, folder: Path) -> None:
    """Greedy and drawn with seeds, each question once."""
    drawn = (folder / "suites/sums.toml").read_text() + "temperature = 0.8\nsamples = 2\nseed = 11\n"
    (folder / "suites/drawn.toml").write_text(drawn)
    judge = ("-m", "rlbox", "eval", "judge", "/measure/checkpoints/global_step_120", "--project", "/measure")
    judge = (*judge, "--suite", "sums", "--suite", "drawn", "--problems", "/measure/problems", "--engine", PYTHON)
    found = {}
    for servers in ("1", "2"):
        done = inside(eval_image, folder, (*judge, "--servers", servers, "--out", f"/measure/by-{servers}"))
        assert done.returncode == 0, done.stderr
        rows = [json.loads(path.read_text()) for path in (folder / f"by-{servers}").rglob("per_problem/*/*.json")]
        found[servers] = {(row["key"], row["problem"], row["number"]): row["text"] for row in rows}
        assert json.loads((folder / f"by-{servers}/step_120/run_info.json").read_text())["servers"] == int(servers)
    assert len(found["1"]) == 3 * len((folder / "problems/sums.jsonl").read_text().splitlines())
    assert found["1"] == found["2"]
