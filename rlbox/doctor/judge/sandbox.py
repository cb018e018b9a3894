"""Judge the walls that model-written code would run behind."""

from __future__ import annotations

from collections.abc import Iterator

from rlbox.doctor.judge.judge import Judge
from rlbox.findings import Finding, listed
from rlbox.sandbox.strength import Strength


def _walls(strength: Strength | None) -> Iterator[Finding]:
    if strength is not None and not strength.contained:
        yield Finding(
            id="sandbox-weak",
            level="warning",
            title="there is no wall here for code that a model wrote: the sandbox refuses to run any",
            seen=listed([f"{layer}: {why}" for layer, why in sorted(strength.missing.items())]) or strength.name,
            where="container",
            remedy="take a machine whose kernel has Landlock (5.13 or newer), or lets users make namespaces",
        )


judge_sandbox = Judge(checks=(_walls,))
