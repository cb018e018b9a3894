"""`make gpu-fits`: does job `sft` train 7.6 x 10^9 parameters on the cards of its target, and not without `offload`?

For a machine with one GPU of 80 GB or more and 80 GB of free host memory, and a Python with torch and with verl and
transformers as the target pins them. Each case is rank 0 of the four, alone (`rank_zero.py` says what of it is real):
verl's trainer with the words that `rlbox run sft` renders, random weights, conversations of full length, and of the
GPU only what `rlbox plan` leaves to torch. The default and `low-memory` must make their steps, both with
`offload=false` end out of memory, as the planner says; the same without the cap shows what they wanted. One JSON line
a case.

rlbox may be installed elsewhere: what `--render` prints there is all that `--rendered` needs here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import string
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
GIB = 1 << 30
# Qwen2.5-7B. Source: config.json of Qwen/Qwen2.5-Coder-7B-Instruct.
SHAPE = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}  # fmt: skip
SMALL = {**SHAPE, "hidden_size": 224, "intermediate_size": 1184, "num_hidden_layers": 2, "vocab_size": 1024}
"""To see that all of it runs."""
ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run of the job by the words of its command line; `fits`: its steps are made within the cap.

    `threads` of the CPU make the steps; 0: one a core. Memory does not depend on it, but AdamW's seconds do where it
    works on the host, and torchrun leaves one to each of several ranks.
    """

    name: str
    words: tuple[str, ...] = ()
    fits: bool = True
    capped: bool = True
    threads: int = 0


LOW, KEPT = ("--profile", "low-memory"), ("--set", "offload=false")
CASES = (
    Case(name="default", threads=1),
    Case(name="low-memory", words=LOW),
    Case(name="default-kept", words=KEPT, fits=False),
    Case(name="low-memory-kept", words=(*LOW, *KEPT), fits=False),
    Case(name="uncapped-kept", words=KEPT, capped=False),
)


def rlbox(*words: str) -> dict[str, Any]:
    """Return the first JSON object that an rlbox command prints."""
    argv = [sys.executable, "-m", "rlbox", *words, "--json"]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
    if done.returncode not in (0, 5):
        sys.exit(f"fits: {argv}: exit code {done.returncode}\n{done.stderr}")
    value: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout)[0]
    return value


def render(case: Case) -> dict[str, Any]:
    """Return what the job says of a case: the trainer's words, what a card needs, what torch may have of it."""
    from rlbox.planner.needs import CONTEXT

    words = (*case.words, "--set", "logger=[console,file]")  # wandb is a matter of the network
    plan = rlbox("run", "sft", "--dry-run", "--force", *words)["plan"]
    argv = next(stage["argv"] for stage in plan["stages"] if stage["name"] == "train")
    needs = rlbox("plan", "sft", *words)["needs"]
    return {
        "case": case.name,
        "settings": {key: plan["params"][key] for key in ("gpus", "micro_batch", "max_length", "offload", "compile")},
        "model": plan["params"]["model"],
        "data": plan["paths"]["data"],
        "env": {key: value for key, value in plan["env"].items() if key != "PYTHONPATH"},
        "words": argv[argv.index("verl.trainer.sft_trainer") + 1 :],
        "needs": sum(next(row["card"] for row in needs["stages"] if row["stage"] == "train").values()),
        "cap": needs["room"]["card"] - CONTEXT,
    }


def make_inputs(folder: Path, shape: dict[str, Any], rendered: dict[str, Any]) -> None:
    """Make a tokenizer, a configuration without weights, and conversations that are longer than any case takes."""
    from sft.files import write_parquet
    from sft.tiny import write_model
    from transformers import AutoConfig

    write_model(folder / "model")
    for weights in folder.glob("model/*.safetensors"):
        weights.unlink()
    config = AutoConfig.from_pretrained(folder / "model")
    config.update(shape)
    config.layer_types = ["full_attention"] * shape["num_hidden_layers"]
    config.save_pretrained(folder / "model")
    drawn = random.Random(1)
    for word in settled(rendered, folder):
        key, _, path = word.partition("=")
        if key not in ("data.train_files", "data.val_files"):
            continue
        texts = ["".join(drawn.choices(string.ascii_lowercase, k=10_000)) for _ in range(ROWS)]
        Path(path.strip('"')).parent.mkdir(parents=True, exist_ok=True)
        turns = [[{"role": "user", "content": "Go on."}, {"role": "assistant", "content": text}] for text in texts]
        write_parquet(Path(path.strip('"')), turns)


def settled(rendered: dict[str, Any], folder: Path) -> list[str]:
    """Return the trainer's words with the data disk in `folder`, and the model that was made there."""
    model = str(folder / "model")
    return [word.replace(rendered["data"], str(folder)).replace(rendered["model"], model) for word in rendered["words"]]


def carry_out(rendered: dict[str, Any], folder: Path, asked: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Run one case in a process of its own; return its line."""
    case = next(case for case in CASES if case.name == rendered["case"])
    note, log = asked.logs / f"{case.name}.json", asked.logs / f"{case.name}.log"
    note.unlink(missing_ok=True)
    words = settled(rendered, folder)
    told = {
        "words": words, "world": rendered["settings"]["gpus"], "steps": asked.steps, "note": str(note),
        "threads": case.threads, "cap": rendered["cap"] if case.capped else 0,
    }  # fmt: skip
    env = {**os.environ, **rendered["env"], "PYTHONUNBUFFERED": "1", "VERL_FILE_LOGGER_PATH": str(folder / "metrics")}
    began = time.monotonic()
    with log.open("wb") as out:
        argv = [sys.executable, str(HERE / "rank_zero.py"), json.dumps(told)]
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        finally:  # its loaders too: they hold its memory, of the host and of the GPU
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = json.loads(note.read_text()) if note.is_file() else {}
    return {
        "case": case.name, "settings": rendered["settings"], "wanted": "fits" if case.fits else "out of memory",
        "cap_gib": round(told["cap"] / GIB, 2), "computed_gib": round(rendered["needs"] / GIB, 2),
        "result": f"exit code {process.returncode}, see {log.name}", **found,
        "wall_s": round(time.monotonic() - began, 1),
    }  # fmt: skip


def is_right(line: dict[str, Any], steps: int) -> bool:
    """Return whether a case ended as it must: so many whole steps, or out of the memory of the GPU."""
    if line["wanted"] != "fits":
        return str(line["result"]).startswith("out of memory")
    made = line.get("steps", [])
    return line["result"] == "fits" and len(made) == steps and all(math.isfinite(step["grad_norm"]) for step in made)


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=", ".join(case.name for case in CASES))
    parser.add_argument("--folder", type=Path, default=Path("build/fits"), help="gets model, data and logs")
    parser.add_argument("--logs", type=Path, help="gets the logs instead")
    parser.add_argument("--render", action="store_true", help="print what the job says of the cases, and end")
    parser.add_argument("--rendered", type=Path, help="such output of another machine")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--case-s", type=float, default=150.0, help="seconds a case may take")
    parser.add_argument("--total-s", type=float, default=1e9, help="seconds that all may take")
    parser.add_argument("--small", action="store_true", help="a model of a million weights, to see that it runs")
    asked = parser.parse_args()
    if unknown := set(asked.cases) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return asked


def main() -> int:
    """Carry out the cases that are named, or all; return 1 when one did not end as it must."""
    asked = options()
    ends = time.monotonic() + asked.total_s
    sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "jobs")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT / "jobs"), os.environ.get("PYTHONPATH", "")])
    rows = json.loads(asked.rendered.read_text()) if asked.rendered else [render(case) for case in CASES]
    if asked.render:
        print(json.dumps(rows, indent=1))
        return 0
    folder = asked.folder.resolve()
    asked.logs = (asked.logs or folder / "logs").resolve()
    asked.logs.mkdir(parents=True, exist_ok=True)
    make_inputs(folder, SMALL if asked.small else SHAPE, rows[0])
    wrong = 0
    for rendered in rows:
        if asked.cases and rendered["case"] not in asked.cases:
            continue
        line = carry_out(rendered, folder, asked, max(1.0, min(asked.case_s, ends - time.monotonic())))
        line["right"] = is_right(line, asked.steps)
        wrong += not line["right"]
        print(json.dumps(line), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
