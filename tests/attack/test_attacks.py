"""The campaign: whatever a workload wrote below a data disk, no verb harms the host or tells a false end.

A sample by default; RLBOX_ATTACK_ALL=1 for all. RLBOX_ATTACK_SEED repeats a campaign, RLBOX_ATTACK_ONLY picks by name.
"""

from __future__ import annotations

import collections
import os
import random
from pathlib import Path

import families
import pytest
from ground import Attempt, Ground, attempt

SEED = int(os.environ.get("RLBOX_ATTACK_SEED") or random.SystemRandom().randrange(1 << 32))
ALL = bool(os.environ.get("RLBOX_ATTACK_ALL"))
ONLY = os.environ.get("RLBOX_ATTACK_ONLY", "")
SAMPLE = 2


def attempts(ground: Ground) -> dict[str, list[Attempt]]:
    """Return the attempts of this campaign by family."""
    found = {}
    for family in families.FAMILIES:
        chance = random.Random(f"{SEED}-{family.__name__}")
        made = [one for one in family(ground, chance) if ONLY in one.name]
        found[family.__name__] = made if ALL or ONLY else chance.sample(made, SAMPLE)
    return found


@pytest.mark.timeout(3600)
def test_nothing_falls(tmp_path: Path) -> None:
    print(f"RLBOX_ATTACK_SEED={SEED}", flush=True)
    fell, count = [], collections.Counter[str]()
    ground = Ground(folder=tmp_path)
    ground.prepare()
    try:
        for family, made in attempts(ground).items():
            for one in made:
                count[family] += 1
                if problem := attempt(ground, one):
                    fell.append(f"{one.name}: rlbox {' '.join(one.words[:2])}: {problem.what}")
                    print(f"FELL {fell[-1]}", flush=True)
    finally:
        ground.restore()  # of folders that are nested without end nothing may stay
    print(", ".join(f"{number} {family}" for family, number in count.items()), flush=True)
    assert not fell, f"{len(fell)} of {count.total()} fell, seed {SEED}:\n" + "\n".join(fell)
