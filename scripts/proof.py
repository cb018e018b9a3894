"""docs/proof.md and rlbox/target/tested.json from tests/gpu/kept.tar.xz; `--check`: are they of its runs?

A kept run is a folder of that archive (`tests/packed.py`): `run.json` as the run wrote it, `stages.log` with what its
stages said, `about.json` with
what neither tells: GPU, date, the versions of the stack, what stopped a run that no longer writes its end; and
`learning.json`, where its last stage judged a curve. A stage counts as proven when every rule of its gate held; a run
that ended early proves the stages before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.append(str(CHECKOUT / "tests"))

from packed import read_packed  # noqa: E402

KEPT, PAGE = CHECKOUT / "tests/gpu/kept.tar.xz", CHECKOUT / "docs/proof.md"
TESTED = CHECKOUT / "rlbox/target/tested.json"
JOBS = ("sft", "grpo", "gkd", "xdan", "holdem", "learn")
HEAD = """<!-- made by: python scripts/proof.py -->
# Verified runs on GPUs

This page lists the kept runs of jobs on GPUs. `rlbox targets` prints the status of each target:

```console
$ rlbox targets
target  a800-cn              4 x A800-80GB, mainland China: slime 0.3.1, … (ran on 4 x NVIDIA H200, 2026-11-28)
target  hopper               8 x H100 or H200: verl 0.9.1, vLLM 0.24, CUDA 13 (untested on NVIDIA H100)
...
```

A row is one run of the real framework with a small model that the run created. The packages were
[trimmed](#trimmed-packages). Everything else is **untested**: other GPUs, other lock files, several nodes, full-size
models, complete packages.

| column | meaning |
|---|---|
| `lock` | target and digest of its lock file; `-`: no lock file pinned the packages |
| `stages proven` | stages that passed all rules of their gates |
| `stopped in` | the stage that failed |
| `place` | `container`, or `in place`: directly on the machine (`--place here`) |

The job `learn` is not shipped; it is in `tests/gpu/project`. The logs are in `tests/gpu/kept.tar.xz`; long logs are
there without their middle.

| job | profile | lock | stages proven | stopped in | GPU | place | date | seconds |
|---|---|---|---|---|---|---|---|---:|
"""

TRIMMED = """
## Trimmed packages

No run used complete packages. A run with a lock used the packages of its lock file, with these changes:

| column | number of files |
|---|---|
| `GPU code` | libraries without the GPU code for other GPUs than sm_90 (H100, H200) |
| `symbols` | libraries and programs without their symbol tables |
| `fixes` | files changed by the target's fixes, as in its image |
| `left out` | files that the runs do not load, such as tests, headers, static libraries, code for other GPUs |

The images of these runs were assembled on the GPU machine. Their package layers are the trimmed packages. The other
layers were built on another machine from the image's Dockerfile.

| jobs | lock | place | GPU code | symbols | fixes | left out |
|---|---|---|---:|---:|---:|---:|
"""
PLAIN_NOTES = {
    "wheels thinned to sm_90; kernels of experts, FlashAttention 2 and flashinfer left out": (
        "GPU code for sm_90 only, without the kernels for mixture of experts, FlashAttention 2 and flashinfer."
    ),
    "wheels thinned to sm_90; kernels of FlashAttention 2 and 3 left out, those of flashinfer compiled there; "
    "torch_memory_saver's library for CUDA 13 in the place of that for 12, pyarrow 21.0.0": (
        "GPU code for sm_90 only, without the kernels of FlashAttention 2 and 3. flashinfer's kernels were compiled on "
        "the GPU machine. torch_memory_saver's library for CUDA 13 replaced the one for CUDA 12. pyarrow was 21.0.0."
    ),
    "wheels thinned to sm_90; kernels of FlashAttention 2 and 3 left out, those of flashinfer compiled there; "
    "torch_memory_saver's library for CUDA 13 in the place of the one without a number alone, pyarrow 21.0.0; in a "
    "container of the image that `rlbox build --hermetic` made there, on a base of the machine's own system": (
        "in a container, the same, but torch_memory_saver's library for CUDA 13 replaced only the library without a "
        "number in its name. `rlbox build --hermetic` built the image on the GPU machine, from that machine's system."
    ),
}
"""The notes of runs that did not record numbers, in plain words."""


def kept() -> list[dict[str, Any]]:
    """Return the kept runs, in the order of the jobs and then of time: `run`, `about` and the folder's `name`."""
    found, files = [], read_packed(KEPT)
    for name in sorted(path.partition("/")[0] for path in files if path.endswith("/run.json")):
        parts = [part for part in ("run", "about", "learning") if f"{name}/{part}.json" in files]
        found.append({"name": name, **{part: json.loads(files[f"{name}/{part}.json"]) for part in parts}})
    return sorted(found, key=lambda row: (JOBS.index(row["run"]["job"]), row["name"]))


def proven(run: dict[str, Any]) -> list[str]:
    """Return the stages all of whose rules held."""
    return [
        stage["name"]
        for stage in run["stages"]
        if stage["state"] == "passed" and stage["gate"] and all(rule["state"] == "held" for rule in stage["gate"])
    ]


def stopped(run: dict[str, Any]) -> str:
    """Return the stage that a run ended in, or nothing for one that passed."""
    return next((stage["name"] for stage in run["stages"] if stage["state"] in ("failed", "running")), "")


def lock_text(about: dict[str, Any]) -> str:
    """Return the target and the beginning of the digest of the lock that a run had; a dash for one without."""
    return f"`{about['target']}` {about['lock'][:12]}" if about.get("lock") else "-"


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the page's tables."""
    for row in rows:
        run, about = row["run"], row["about"]
        seconds = sum(stage.get("seconds") or 0 for stage in run["stages"])
        where = "in place" if run["place"] == "here" else "container"
        profile = run["profile"].replace("+", ", ") or "default"
        gpus = f"{about['gpus']} × {about['gpu']}"
        yield (
            f"| {run['job']} | {profile} | {lock_text(about)} | {', '.join(proven(run))} | {stopped(run)} "
            f"| {gpus} | {where} | {about['date']} | {seconds:.0f} |\n"
        )
    yield "\n| run | stack | what stopped it |\n|---|---|---|\n"
    for row in rows:
        stack = ", ".join(f"{name} {version}" for name, version in row["about"]["stack"].items())
        cause = next((stage["cause"] for stage in row["run"]["stages"] if stage.get("cause")), None)
        why = str((cause or {}).get("line") or (cause or {}).get("text") or "").replace("|", "\\|")[-160:]
        why = row["about"].get("stopped", why)
        yield f"| {row['name']} | {stack} | {why} |\n"
    yield from trimmed_lines(rows)
    for python in sorted({row["about"]["python"] for row in rows}):
        locks = sorted({lock_text(row["about"]) for row in rows if row["about"]["python"] == python} - {"-"})
        yield f"\nPython {python}: {', '.join(locks) if locks else 'the runs without a lock'}.\n"
    yield from step_lines(rows)
    yield "\n## Learning\n\nThe mean reward on questions that no training has seen.\n"
    for row in rows:
        if learning := row.get("learning"):
            yield from curve_lines(row, learning)


def trimmed_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how the packages of the runs differed from those of a normal installation."""
    found: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        about, where = row["about"], "in place" if row["run"]["place"] == "here" else "container"
        if "differs" in about:
            counts = [str(about["differs"].get(kind, 0)) for kind in ("thinned", "stripped", "patched", "left out")]
            found.setdefault((lock_text(about), where, *counts), set()).add(row["run"]["job"])
    yield TRIMMED
    for cells, jobs in sorted(found.items()):
        yield f"| {', '.join(sorted(jobs, key=JOBS.index))} | {' | '.join(cells)} |\n"
    yield "\nThe runs without a lock used other trimmed packages:\n\n"
    for note in sorted({row["about"]["note"] for row in rows if "differs" not in row["about"]}):
        of = sorted({row["run"]["job"] for row in rows if row["about"]["note"] == note}, key=JOBS.index)
        yield f"- {', '.join(of)}: {PLAIN_NOTES[note]}\n"


def step_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how long a step took beside the same command without rlbox."""
    yield "\n## Step time\n\nMedian step time with rlbox and of the same command without it, on the same machine. "
    yield "The first step is left out. The values of `sft` have no unit: verl's SFT log gives no time, so the value is "
    yield "tokens / (10^9 × utilization), which is proportional to the time.\n\n"
    yield "| run | stage | steps | under rlbox | without | ratio |\n|---|---|---:|---:|---:|---:|\n"
    for row in rows:
        if told := row["about"].get("steps"):
            ours, bare, unit = told["rlbox"], told["bare"], told["unit"]
            yield f"| {row['name']} | {told['stage']} | {told['count']} "
            yield f"| {ours:.3f}{unit} | {bare:.3f}{unit} | {ours / bare:.2f} |\n"


def curve_lines(row: dict[str, Any], learning: dict[str, Any]) -> Iterator[str]:
    """Yield what a curve says: each test's mean, and the rise with its interval."""
    about = row["about"]
    yield f"\n### {about['title']}\n\n{row['name']}:\n\n![curve]({about['curve']})\n\n"
    yield "| training | mean reward at the step | rise | 95 % interval |\n|---|---|---:|---|\n"
    for name, title in (("grpo", "GRPO"), ("control", "the same with a learning rate of 0")):
        told = learning[name]
        means = ", ".join(f"{step}: {mean:.3f}" for step, mean in told["means"].items())
        yield f"| {title} | {means} | {told['rise']:+.3f} | {told['low']:+.3f} to {told['high']:+.3f} |\n"
    count, says = learning["grpo"]["questions"], about["says"]
    yield f"\n{count} questions, question by question, one sampled answer each. {says}\n"


def picture(learning: dict[str, Any]) -> str:
    """Return the curves of both trainings, reward from 0 to 1 over the steps."""
    last = max(int(step) for told in learning.values() if isinstance(told, dict) for step in told["means"])
    lines = []
    for name, colour in (("control", "#888888"), ("grpo", "#1f6feb")):
        points = [(60 + 500 * int(step) / last, 220 - 200 * mean) for step, mean in learning[name]["means"].items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{points[-1][0] + 6:.1f}" y="{points[-1][1] + 4:.1f}" fill="{colour}">{name}</text>')
    for mean in (0, 0.5, 1):
        y = 220 - 200 * mean
        lines.append(
            f'<text x="30" y="{y + 4:.0f}">{mean}</text><path d="M60 {y:.0f}H560" stroke="#888888" stroke-width="0.3"/>'
        )
    lines.append(f'<text x="60" y="240">step 0</text><text x="540" y="240">{last}</text>')
    style = 'font-family="sans-serif" font-size="12" fill="#888888"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 250" {style}>\n' + "\n".join(lines) + "\n</svg>\n"


def page() -> str:
    """Return the page that the kept runs give."""
    return HEAD + "".join(lines(kept()))


def tested_runs() -> str:
    """Return what `rlbox targets` reads: the passed runs of shipped locks, a line each."""
    rows = [
        {
            "job": row["run"]["job"],
            "profile": row["run"]["profile"],
            "gpu": row["about"]["gpu"],
            "gpus": row["about"]["gpus"],
            "place": row["run"]["place"],
            "date": row["about"]["date"],
            "lock": row["about"]["lock"],
        }
        for row in kept()
        if row["run"]["state"] == "passed" and row["about"].get("lock")
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def main() -> None:
    """Write both, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when they are of other runs")
    told = parser.parse_args()
    curves = {PAGE.parent / row["about"]["curve"]: picture(row["learning"]) for row in kept() if "learning" in row}
    for path, text in ({PAGE: page(), TESTED: tested_runs()} | curves).items():
        if not told.check:
            path.write_text(text, "utf-8")
        elif path.read_text("utf-8") != text:
            sys.exit(f"{path.relative_to(CHECKOUT)} is not of the kept runs: run python scripts/proof.py")


if __name__ == "__main__":
    main()
