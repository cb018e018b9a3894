"""Paths that `--set` names: off the data disk they lie on a small system disk, and are lost with the container."""

from __future__ import annotations

import posixpath

from rlbox.job.filler import Paths
from rlbox.job.job import Job
from rlbox.job.names import SOURCE
from rlbox.job.params import SET, Values

_IMAGE = "/opt"
"""What an image brings of its own: trees to read, no place to write."""
_OWN = ("{data}", "{run}", "{job}")


def off_disk(job: Job, values: Values, paths: Paths) -> dict[str, str]:
    """Return the parameters of `--set` that name a path off the data disk, with what each says."""
    inside = (paths.data, paths.run, paths.job, _IMAGE)
    found = {}
    for name, value in values.params.items():
        if values.origins.get(name) != SET or not isinstance(value, str) or not value:
            continue
        if job.source and name == SOURCE:  # read alone, and mounted
            continue
        ours = str(job.params[name].default or "").startswith(_OWN)
        if not (ours or value.startswith(("/", "~", "./", "../"))):
            continue
        plain = posixpath.normpath(value)
        if not any(plain == root or plain.startswith(f"{root}/") for root in map(posixpath.normpath, inside)):
            found[name] = value
    return found
