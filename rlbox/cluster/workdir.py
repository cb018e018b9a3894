"""What of a working directory goes along with a job: all but what is excluded, and no more than Ray takes."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence

from rlbox.amounts import MIB, size_text
from rlbox.errors import SpecError
from rlbox.i18n import _

EXCLUDED = (".git", ".venv", "venv", "__pycache__", "ckpts", "checkpoints", "outputs", "wandb")
"""Left out without being told: what git, Python and trainers make there."""

MOST = 512 * MIB
"""Source: ray/_private/runtime_env/packaging.py: a larger package is refused."""

_SHOWN = 3


def is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path below the directory is left out: by a name in it; where a pattern has a `/`, by itself."""
    names = path.split("/")
    heads = ["/".join(names[:end]) for end in range(1, len(names) + 1)]
    return any(
        any(fnmatch.fnmatchcase(head, pattern.strip("/")) for head in heads)
        if "/" in pattern.strip("/")
        else any(fnmatch.fnmatchcase(name, pattern.strip("/")) for name in names)
        for pattern in patterns
    )


def check_size(folder: str, sizes: Mapping[str, int]) -> None:
    """Refuse what Ray would not take; `sizes` are the bytes of each file, by its path below the folder.

    Raises
    ------
    SpecError
        It is too large; the largest parts are named.
    """
    total = sum(sizes.values())
    if total <= MOST:
        return
    parts: Counter[str] = Counter()
    for path, size in sizes.items():
        parts[path.split("/")[0]] += size
    largest = parts.most_common(_SHOWN)
    named = ", ".join(f"{name} {size_text(size)}" for name, size in largest)
    raise SpecError(
        _("the working directory has {total}, and Ray takes {most}: {named}").format(
            total=size_text(total), most=size_text(MOST), named=named
        ),
        where=folder,
        next_step=_("--exclude {largest}; what a job reads belongs on the nodes' data disks").format(
            largest=largest[0][0]
        ),
    )
