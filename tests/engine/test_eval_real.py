"""`rlbox eval` with the real vLLM of the target `local`: judged three times in other batches and orders.

`RLBOX_EVAL_IMAGE` names an image of the target that is there already, in the place of one that is built.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from enginebox import CHECKOUT, docker

from rlbox.evaluation.files import read_result
from rlbox.evaluation.result import ACCEPTED
from rlbox.evaluation.sandbox_client import run_sandbox_and_yield_url
from rlbox.evaluation.scores import compute_paired_difference_of_common_problems

pytestmark = pytest.mark.slow
PROGRAMS = CHECKOUT / "tests/evaluation/programs"
PROBLEMS, SEED = 96, 11


@pytest.fixture(scope="module")
def site(eval_image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that was trained there and then, and two suites of sums: greedy, and drawn with seeds."""
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    mounts = (f"--volume={PROGRAMS}:/programs:ro", f"--volume={folder}:/out")
    words = ("run", "--rm", "--label=rlbox.test=eval", "--network=none", *mounts, "--entrypoint=/opt/venv/bin/python")
    done = subprocess.run(
        ["docker", *words, eval_image, "/programs/small_model.py", "/out/model", "400"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (folder / "problems").mkdir()
    (folder / "suites").mkdir()
    rows = []
    for number in range(PROBLEMS):
        one, other = number % 24, number // 24
        statement = f"Write a program that prints {one} plus {other}."
        tests = {"input": [""], "output": [f"{one + other}\n"]}
        rows.append(json.dumps({"name": f"sum-{one}-{other}", "description": statement, "public_tests": tests}))
    (folder / "problems/sums.jsonl").write_text("\n".join(rows))
    suite = 'title = "sums"\nfile = "sums.jsonl"\nask_program = "{statement}"\n[decoding]\nmax_tokens = 96\n'
    (folder / "suites/sums.toml").write_text(suite)
    (folder / "suites/drawn.toml").write_text(f"{suite}temperature = 0.8\nsamples = 2\nseed = {SEED}\n")
    return folder


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    with run_sandbox_and_yield_url("", 10, 1024) as url:
        yield url


@contextlib.contextmanager
def vllm(image: str, site: Path, sequences: int) -> Iterator[str]:
    """Yield the address of vLLM in a container, which works on so many sequences at once at most."""
    name = f"rlbox-eval-{os.getpid()}-{sequences}"
    words = (
        "--detach",
        f"--name={name}",
        "--label=rlbox.test=eval",
        "--shm-size=1g",
        "--init",
        "-p",
        "127.0.0.1:0:8000",
    )
    serve = ("-m", "vllm.entrypoints.openai.api_server", "--model", "/out/model", "--served-model-name", "judged")
    # seeded answers: no prompt may be cut in two on the CPU, see jobs/smoke.toml
    limits = ("--max-model-len", "256", "--max-num-seqs", f"{sequences}", "--max-num-batched-tokens", "16384")
    memory = ("--kv-cache-memory-bytes", f"{256 << 20}", "--enforce-eager", "--dtype", "bfloat16")
    entry = ("--entrypoint=/opt/venv/bin/python", f"--volume={site}:/out:ro", image)
    docker("run", *words, *entry, *serve, "--host", "0.0.0.0", *limits, *memory, "--generation-config", "vllm")
    try:
        url = f"http://{docker('port', name, '8000').split()[0]}"
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            running = docker("inspect", "--format={{.State.Running}}", name).strip()
            assert running == "true", docker("logs", "--tail=40", name)
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                yield url
                return
            time.sleep(1)
        raise AssertionError(f"vLLM was never ready: {docker('logs', '--tail=40', name)}")
    finally:
        docker("rm", "--force", "--volumes", name)


def line(site: Path, url: str, sandbox: str, out: str, at_once: int, *more: str) -> list[str]:
    """Return the command line that judges the model."""
    words = ("eval", "judge", str(site / "model"), "--project", str(site), "--problems", str(site / "problems"))
    asked = ("--url", url, "--sandbox-url", sandbox, "--at-once", f"{at_once}", "--out", str(site / out))
    return [sys.executable, "-m", "rlbox", *words, *asked, "--suite", "sums", "--suite", "drawn", *more]


def judge(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def answers(folder: Path) -> dict[tuple[str, str, int], str]:
    """Return what was answered, by suite, problem and number."""
    rows = [(path.parent.name, json.loads(path.read_text())) for path in folder.rglob("per_problem/*/*.json")]
    return {(suite, row["problem"], row["number"]): row["text"] for suite, row in rows}


def test_the_same_answers_in_other_batches_and_orders(
    eval_image: str, site: Path, sandbox: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every answer is equal; where the engine cannot promise that, the flips are told and decide nothing."""
    backwards = [json.loads(row)["name"] for row in (site / "problems/sums.jsonl").read_text().splitlines()][::-1]
    for name in ("sums", "drawn"):
        (tmp_path / f"{name}.json").write_text(json.dumps(backwards))
    for sequences, at_once, more in ((16, 16, ()), (1, 1, ()), (5, 32, ("--manifests", str(tmp_path)))):
        with vllm(eval_image, site, sequences) as url:
            judge(line(site, url, sandbox, f"seqs{sequences}", at_once, *more))
    first, told = answers(site / "seqs16"), []
    assert len(first) == 3 * PROBLEMS
    result = read_result(site / "seqs16/model/summary.json")
    for name in ("seqs1", "seqs5"):
        other = answers(site / name)
        assert other.keys() == first.keys()
        flips = [key for key in first if first[key] != other[key]]
        told.append(f"16 sequences at once and {name[4:]}: {len(flips)} of {len(first)} answers differ")
        for suite in {key[0] for key in flips}:
            figures = (
                one.get_metric_values_or_empty(suite, ACCEPTED)
                for one in (result, read_result(site / name / "model/summary.json"))
            )
            assert not compute_paired_difference_of_common_problems(*figures).is_significant
    with capsys.disabled():
        print("\n" + "\n".join(told), dict(Counter(row["outcome"] for row in rows(site / "seqs16"))))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.rglob("per_problem/*/*.json")]
