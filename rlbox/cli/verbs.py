"""The verbs and what each does, for help and completion; kept apart from click, whose import is slow."""

from __future__ import annotations

VERBS = {
    "attach": "watch a run that goes on, from any shell",
    "apply": "bring this machine, which has no Docker, to a target's lock",
    "build": "build a target's image, unless nothing changed",
    "bundle": "write an archive with all that explains a run",
    "completion": "print the completion script of a shell",
    "doctor": "say what is wrong with this machine, a container, or a target's image",
    "fetch": "bring every file of a target's lock into the store",
    "egress": "list every host that a target contacts, and why",
    "fixes": "list the fixes, show one, or explain what a target gets",
    "lint": "find what no longer works in scripts, notes, specs and jobs",
    "load": "load an image from an archive of `rlbox save`",
    "lock": "pin every package of a target with its sha256",
    "logs": "print or follow the logs of a run",
    "mirrors": "list the mirrors of a sources profile, or measure them",
    "push": "push a target's image to a registry",
    "render": "write a target's Dockerfile",
    "report": "write a run as one HTML file",
    "run": "run a job stage by stage, stopping at the first fatal line",
    "runs": "list the runs on the data disk, or compare two",
    "save": "write a target's image to an archive",
    "shell": "open a shell in a target's image, or run one command",
    "show": "print a target or job, or explain an image",
    "stop": "end a run that goes on, from any shell",
    "store": "list, verify or prune the store of fetched files",
    "targets": "list targets and jobs",
}
