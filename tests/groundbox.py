"""A project in which one thing after the other is wrong, for all that somebody may type in it."""

from __future__ import annotations

from pathlib import Path

from fakes import JOB, ON_IMAGE, TARGET, Folder
from reportbox import write_run


def write_ground(folder: Folder) -> Path:
    """Write targets, jobs and files, of which some are as they should be, and a disk with runs; return the folder."""
    for name, spec in {
        "mine": TARGET,
        "based": ON_IMAGE,
        "unlocked": TARGET,
        "stale": TARGET,
        "tornlock": TARGET,
        "torn": "title = [",
        "typo": TARGET.replace("packages", "pakages"),
        "type": TARGET.replace('["six==1.16.0"]', "5"),
        "lost": 'include = "nosuch"\n',
        "round": 'include = "round"\n',
        "nobase": TARGET.replace('bootstrap = "debian:bookworm"', ""),
        "clash": 'include = "vast-5090"\n[compat.off]\nnosuch = "x"\n',
    }.items():
        folder.target(name, spec)
    for name in ("mine", "based"):
        folder.lock(name)
    folder.lock("stale", spec="0")
    folder.write("images/tornlock/lock.json", "{")
    for name, job in {
        "own": JOB,
        "bad": JOB.replace("command", "comand"),
        "notarget": JOB.replace('"mine"', '"nosuch"'),
    }.items():
        folder.job(name, job)
    folder.write("sources/broken.toml", "[[")
    folder.write("text.txt", "vllm serve model --nosuch\n")
    folder.write("empty", "")
    folder.write("sub/.keep", "")
    (folder.path / "bytes.bin").write_bytes(bytes(range(256)))
    (folder.path / "loop").symlink_to("loop")
    folder.write("torn-ckpt/global_step_5/model_world_size_2_rank_0.pt", "PK")
    for name in ("a-1", "a-2"):
        write_run(folder.path / "disk/runs" / name, samples=5, steps=5)
    folder.write("disk/runs/torn-1/plan.json", "{")
    return folder.path
