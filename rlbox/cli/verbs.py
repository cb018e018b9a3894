"""The verbs and what each does, for help and completion; kept apart from click, whose import is slow."""

from __future__ import annotations

COMPLETION = "_RLBOX_COMPLETE"
"""A shell that completes calls without words, and asks by this variable."""

SECTIONS = {
    "start": {
        "init": "write a target and a job of your own, to begin with",
    },
    "images": {
        "build": "build a target's image, unless nothing changed",
        "compile": "compile a target's wheels that no index has, once",
        "egress": "list every host that a target contacts, and why",
        "export": "print a target as compose.yaml or as an Apptainer definition",
        "fetch": "bring every file of a target's lock into the store",
        "images": "list the images that rlbox built in this engine, or remove some",
        "load": "load an image from an archive of `rlbox save`",
        "lock": "pin every package of a target with its sha256",
        "mirrors": "list the mirrors of a sources profile, or measure them",
        "push": "push a target's image to a registry",
        "render": "write a target's Dockerfile",
        "save": "write a target's image to an archive",
        "shell": "open a shell in a target's image, or run one command",
        "show": "print a target or job, or explain an image",
        "store": "list, verify or prune the store of fetched files",
        "targets": "list targets and jobs",
    },
    "runs": {
        "attach": "watch a run in progress, from any shell",
        "bundle": "write an archive with all that explains a run",
        "diagnose": "say what broke first in logs, why, and what to do",
        "logs": "print or follow the logs of a run",
        "plan": "show what a job needs of a machine, and whether it fits",
        "report": "write a run as one HTML file",
        "run": "run a job stage by stage, stopping at the first fatal line",
        "runs": "list the runs on the data disk, or compare two",
        "stop": "stop a run in progress, from any shell",
        "watch": "show a run as a live page in a browser",
    },
    "scores": {
        "eval": "judge checkpoints, compare their scores, choose the best",
    },
    "machines": {
        "apply": "bring this machine, which has no Docker, to a target's lock",
        "ckpt": "list checkpoints, or check that they are whole",
        "components": "test the parts of a stack: torch, CUDA, Ray, each framework",
        "data": "check training data, or make a tiny set of them",
        "doctor": "find what is wrong with this machine, a container, or a target's image",
        "engine": "start a Docker engine where none answers, or show its state",
        "gpus": "show who holds which GPU, and whether a split of them fits",
        "prune": "free what nothing needs: images, fetched files, caches",
        "warm": "read files into memory, and verify that they are there",
    },
    "clusters": {
        "cluster": "make several machines one closed Ray cluster, and take it away",
    },
    "rented": {
        "onstart": "print the on-start script of a target of vast.ai",
        "vast": "rent a machine on vast.ai, run a job there, fetch everything, shut it down",
    },
    "rules": {
        "fixes": "list the fixes, show one, or explain what a target gets",
        "lint": "find what no longer works in scripts, notes, specs and jobs",
        "stack": "judge whether a target's versions fit together, or find a set that does",
    },
    "": {
        "completion": "print the completion script of a shell",
    },
}
"""Folder of `rlbox/cli/` to its verbs, and what each does; a verb is the module of its name."""

TITLES = {
    "start": "Begin",
    "images": "Images: lock, build, look, ship",
    "runs": "Runs: start, follow, understand",
    "scores": "Scores: what a checkpoint can do, and how sure that is",
    "machines": "Machines: see what they have, and bring them to a target",
    "clusters": "Clusters: several machines as one",
    "rented": "Rented machines: there and back",
    "rules": "Rules: what is fixed, what no longer works, what fits together",
    "": "Besides",
}
"""What `--help` calls the folders."""

OTHER_WORDS = {
    "ls": "targets",
    "list": "targets",
    "image": "images",
    "rmi": "images",
    "clean": "prune",
    "cleanup": "prune",
    "gc": "prune",
    "cache": "prune",
    "jobs": "targets",
    "ps": "runs",
    "status": "runs",
    "history": "runs",
    "start": "run",
    "up": "run",
    "exec": "shell",
    "bash": "shell",
    "ssh": "shell",
    "tail": "logs",
    "kill": "stop",
    "cancel": "stop",
    "down": "stop",
    "check": "doctor",
    "verify": "doctor",
    "install": "apply",
    "setup": "apply",
    "rent": "vast",
    "instance": "vast",
    "instances": "vast",
    "evaluate": "eval",
    "score": "eval",
    "new": "init",
    "pull": "fetch",
    "download": "fetch",
    "freeze": "lock",
}
"""What people of other tools type, and the verb that does it here."""

VERBS = {verb: text for verbs in SECTIONS.values() for verb, text in verbs.items()}


def module_of(verb: str) -> str:
    """Return the module that holds a verb's command."""
    folder = next(folder for folder, verbs in SECTIONS.items() if verb in verbs)
    return ".".join(("rlbox.cli", *folder.split(), verb))
