"""The recipes that need cards: `gpurecord.py run OUT [CARDS]` where there are some, `gpurecord.py take OUT ENV` here.

`run` needs nothing but a Python with torch and lays NAME.log with NAME.json into OUT; `take` keeps them as logs of the
environment ENV (`h100-torch-2.11`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faultrecipe import Recipe, recipes


def run(out: Path, cards: int) -> None:
    """Carry out each recipe that so many cards can show."""
    for recipe in recipes():
        if recipe.needs == "gpu" or (recipe.needs == "gpus" and cards > 1):
            code, text = _one(recipe)
            (out / f"{recipe.name}.log").write_text(text, encoding="utf-8")
            versions = {name: metadata.version(name) for name in recipe.versions}
            (out / f"{recipe.name}.json").write_text(json.dumps({"code": code, "versions": versions}))
            sys.stdout.write(f"{recipe.name}: {code}, {len(text)} characters\n")
            sys.stdout.flush()


def _one(recipe: Recipe) -> tuple[int | None, str]:
    with tempfile.TemporaryDirectory(prefix="job-") as folder:
        for name, text in {**recipe.files, "launch.sh": recipe.run}.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        with open(Path(folder, "log"), "w+b") as log:
            words = ["bash", "launch.sh"]
            env = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
            job = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=env, start_new_session=True)
            try:
                code: int | None = job.wait(recipe.timeout_s)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
            log.seek(0)
            return code, log.read().decode("utf-8", "replace").replace(folder, "/data/job")


def take(out: Path, env: str) -> int:
    """Keep what such a machine printed."""
    from labbox import Ran
    from record import Missed, keep

    missed = 0
    by_name = {recipe.name: recipe for recipe in recipes()}
    for path in sorted(out.glob("*.log")):
        told = json.loads(path.with_suffix(".json").read_text())
        text = path.read_text(encoding="utf-8")
        try:
            label = keep(by_name[path.stem], env, Ran(code=told["code"], logs={"": text}, versions=told["versions"]))
            sys.stdout.write(f"{path.stem}: line {label['line']}\n")
        except Missed as error:
            missed += 1
            sys.stdout.write(f"{path.stem}: MISSED: {error}\n{text[-1500:]}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1] == "take":
        sys.exit(take(Path(sys.argv[2]), sys.argv[3]))
    run(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
